"""nats-py's objects in the form the rest of the bus uses: frames, subscriptions, and a client that lets go of the dead.

Everything untyped about nats-py ends here and in `nats_link`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

NO_RESPONDERS = "503"
_HEADER_LINE = len(b"NATS/1.0\r\n") + len(b"\r\n")


@dataclass(frozen=True, slots=True)
class Frame:
    """One message as it came off the wire."""

    subject: str
    data: bytes
    reply: str
    headers: Mapping[str, str]

    @property
    def status(self) -> str:
        """Status code of a control message, or an empty string."""
        return self.headers.get("Status", "") if not self.data else ""


OnFrame = Callable[[Frame], Awaitable[None]]
OnReply = Callable[[Frame | None], None]
"""Receives each reply, or None when the connection broke."""


class ImpatientClient(Client):  # type: ignore[misc]
    """nats-py's client, made to drop a dead socket at once."""

    async def _attempt_reconnect(self) -> None:
        # close() would wait until the kernel took all buffered bytes, which a silent peer delays for minutes.
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()

    async def leave(self, subscription: Any) -> None:
        """Tell the server that nothing more is wanted, and still hand on what is on its way."""
        for sid, each in self._subs.items():
            if each is subscription:
                await self._send_unsubscribe(sid)
                return


class Listening:
    """One subscription. Closing lets a running handler finish; nats-py alone would cancel it, even from within."""

    def __init__(self, on_frame: OnFrame, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self.subscription: Any = None
        self._spawn = spawn
        self._on_frame = on_frame
        self._is_running = False
        self._is_closed = False

    async def on_message(self, message: Any) -> None:
        """Handle one message, unless closed."""
        if self._is_closed:
            return
        self._is_running = True
        try:
            await self._on_frame(frame_of(message))
        finally:
            self._is_running = False
            self._leave_if_closed()

    async def close(self) -> None:
        """Stop receiving; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_running:
            await self._unsubscribe()

    def _leave_if_closed(self) -> None:
        if self._is_closed:
            self._spawn(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        with suppress(nats.errors.Error):
            await self.subscription.unsubscribe()


def frame_of(message: Any) -> Frame:
    """The part of nats-py's message that matters."""
    return Frame(message.subject, message.data, message.reply, message.headers or {})


def header_bytes(headers: Mapping[str, str] | None) -> int:
    """Bytes the headers take on the wire; they count against max_payload."""
    if not headers:
        return 0
    return _HEADER_LINE + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
