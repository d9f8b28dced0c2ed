"""Messages as they come off the wire, and subscriptions that hand them on."""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import nats.errors
import structlog

NO_RESPONDERS = "503"
_VERSION = "NATS/1.0"
_MOST_BYTES = 64 << 20
"""What one subscription may hold back for a handler that is slower than its messages."""

log = structlog.get_logger()


class Frame:
    """One message. Most of them nobody asks for headers, so these are read only then."""

    __slots__ = ("_headers", "_raw", "data", "reply", "subject")

    def __init__(self, subject: str, data: bytes, reply: str, raw_headers: bytes = b"") -> None:
        self.subject = subject
        self.data = data
        self.reply = reply
        self._raw = raw_headers
        self._headers: Mapping[str, str] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers; a control message has its `Status` and `Description` among them."""
        if self._headers is None:
            self._headers = parse_headers(self._raw)
        return self._headers

    @property
    def status(self) -> str:
        """Status code of a control message, or an empty string."""
        return self.headers.get("Status", "") if self._raw and not self.data else ""


OnFrame = Callable[[Frame], None]
OnReply = Callable[[Frame | None], None]
"""Receives each reply, or None when the connection broke."""


class Hearing:
    """One subscription whose messages are handed on at once."""

    def __init__(self) -> None:
        self.subscription: Any = None

    async def close(self) -> None:
        """Stop receiving; idempotent."""
        with suppress(nats.errors.Error):
            await self.subscription.unsubscribe()


class Listening(Hearing):
    """One subscription whose messages are handled one after another. Closing lets a running handler finish."""

    def __init__(
        self,
        subject: str,
        handle: Callable[[Frame], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        super().__init__()
        self._subject = subject
        self._handle = handle
        self._spawn = spawn
        self._frames: deque[Frame] = deque()
        self._num_bytes = 0
        self._is_running = False
        self._is_closed = False

    def take(self, frame: Frame) -> None:
        """Line one message up, unless closed; one too many is dropped, as the server would drop it."""
        if self._is_closed:
            return
        if self._num_bytes + len(frame.data) > _MOST_BYTES:
            log.warning("bus_message_dropped", subject=self._subject)
            return
        self._frames.append(frame)
        self._num_bytes += len(frame.data)
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def close(self) -> None:
        """Stop receiving; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_running:
            await super().close()

    async def _run(self) -> None:
        try:
            while self._frames and not self._is_closed:
                frame = self._frames.popleft()
                self._num_bytes -= len(frame.data)
                await self._handle_one(frame)
        finally:
            self._is_running = False
            if self._is_closed:
                self._spawn(super().close())

    async def _handle_one(self, frame: Frame) -> None:
        try:
            await self._handle(frame)
        except Exception:  # one message must not keep those behind it from being handled
            log.exception("bus_message_failed", subject=frame.subject)


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers of a block as the server writes it: `NATS/1.0[ status[ description]]`, then one a line."""
    headers: dict[str, str] = {}
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    if status:
        headers["Status"] = status
    if description:
        headers["Description"] = description
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def header_block(headers: Mapping[str, str]) -> bytes:
    """The block as the server reads it. Raises BadHeaderError when a header would break out of its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    block = f"{_VERSION}\r\n{lines}\r\n".encode()
    if block.count(b"\n") != len(headers) + 2:
        raise nats.errors.BadHeaderError(next(iter(headers)))
    return block
