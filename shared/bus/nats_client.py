"""nats-py's client on a diet: it still connects, authenticates and reconnects; messages take a shorter way through it.

By itself it runs a queue and a task per subscription, and a queue, a future and a task per write. Here a message is
handed on as it is parsed, and what one turn of the event loop sends leaves in one write. Everything untyped about
nats-py ends here and in `nats_link`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

from headrace.shared.bus.nats_parse import FrameParser
from headrace.shared.bus.nats_wire import Frame, OnFrame, header_block

_FULL_BYTES = 1 << 20
"""Unsent bytes above which writing waits for the socket."""

log = structlog.get_logger()


class LeanClient(Client):  # type: ignore[misc]
    """One connection. `hear` and `post` replace `subscribe` and `publish`."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = FrameParser(self.take, self._control)
        self._hearers: dict[int, OnFrame] = {}
        self._pending: list[bytes] = []
        self._is_write_due = False

    async def hear(self, subject: str, on_frame: OnFrame, *, queue: str = "") -> Any:
        """Subscribe: `on_frame` is called from the reader, so it must not block. Returns nats-py's subscription."""
        number = self._sid + 1  # nats-py numbers the subscription before it first waits
        self._hearers[number] = on_frame
        try:
            return await self.subscribe(subject, queue=queue)
        except BaseException:
            self._hearers.pop(number, None)
            raise

    async def leave(self, subscription: Any) -> None:
        """Tell the server that nothing more is wanted, and still hand on what is on its way."""
        for number, each in self._subs.items():
            if each is subscription:
                await self._send_unsubscribe(number)
                return

    def take(self, number: int, frame: Frame) -> None:
        """Hand on one message; whatever its hearer does, reading goes on."""
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(frame.data)
        hearer = self._hearers.get(number)
        if hearer is None:
            return
        try:
            hearer(frame)
        except Exception:  # a reader that stopped would leave a connection that looks alive
            log.exception("bus_hearer_failed", subject=frame.subject)

    def post(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        """Send one message with the next write; buffered while disconnected. Raises as nats-py's `publish` does."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        block = header_block(headers) if headers else b""
        if len(block) + len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        if block:
            head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n".encode() + block
        else:
            head = f"PUB {subject} {reply} {len(data)}\r\n".encode()
        command = b"%b%b\r\n" % (head, data)
        if not self.is_connected and len(command) + self._pending_data_size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(data)
        self._pending.append(command)
        self._pending_data_size += len(command)
        self._write_soon()

    @property
    def is_congested(self) -> bool:
        """Whether so much waits for the socket that senders should wait, too."""
        return bool(self._pending_data_size > self._max_pending_size)

    async def decongest(self) -> None:
        """Wait until the socket took what waits for it, or for a second."""
        await self._flush_pending(force_flush=True)

    async def _control(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb.upper():
            case b"PING":
                await self._process_ping()
            case b"PONG":
                await self._process_pong()
            case b"INFO":
                await self._process_info(msgspec.json.decode(rest))
            case b"-ERR":
                await self._process_err(rest.decode().strip().lower())
            case b"+OK":
                pass
            case _:
                raise nats.errors.ProtocolError

    def _write_soon(self) -> None:
        if not self._is_write_due and self.is_connected:
            self._is_write_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        # Without a connection the commands stay here: after the reconnect nats-py asks for another flush.
        if not self._pending or not self.is_connected or self._transport is None:
            return
        if self._num_unsent() > _FULL_BYTES:
            if self._flush_queue.empty():
                self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
            return
        # RuntimeError: the socket is gone, which the reader is about to find out.
        with suppress(RuntimeError):
            self._transport.write(b"".join(self._pending))
            self._pending = []
            self._pending_data_size = 0

    def _num_unsent(self) -> int:
        writer = getattr(self._transport, "_io_writer", None)
        return 0 if writer is None else int(writer.transport.get_write_buffer_size())

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # nats-py's own form
        if force_flush or not self.is_connected:
            return await super()._flush_pending(force_flush)
        return self._write_soon()

    async def _send_ping(self, future: Any = None) -> None:
        # nats-py writes a ping past everything that waits; as a barrier it must come last.
        self._write()
        await super()._send_ping(future)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._hearers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _attempt_reconnect(self) -> None:
        # close() would wait until the kernel took all buffered bytes, which a silent peer delays for minutes.
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()
