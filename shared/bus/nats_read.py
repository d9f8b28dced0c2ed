"""Reading stored records back by direct get, one or many, and turning frames into records.

Replies of a batched get come one message per record, closed by a `204 EOB`; each carries its place in headers.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

import msgspec

from headrace.shared.bus import Record
from headrace.shared.bus.nats_link import ASK_S, Link
from headrace.shared.bus.nats_wire import NO_RESPONDERS, Frame
from headrace.shared.errors import BusError, BusUnavailableError, MissingError

_BATCH = 256
_BATCH_BYTES = 16 << 20
"""Keeps one batch well inside the client's buffer limit, and above any single message."""
_SILENCE_S = 1.5


class Reader:
    """Direct gets over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def last(self, stream: str, subject: str) -> Record | None:
        """See `Bus.last`."""
        request = msgspec.json.encode({"last_by_subj": subject})
        frame = await self._link.ask(f"$JS.API.DIRECT.GET.{stream}", request)
        if frame.status == "404":
            return None
        return _stored(_checked(stream, frame))

    async def read(self, stream: str, subject: str, after: int, limit: int) -> list[Record]:
        """See `Bus.read`."""
        deadline = asyncio.get_running_loop().time() + ASK_S
        records: list[Record] = []
        while len(records) < limit:
            try:
                has_more = await self._batch(stream, subject, after, min(limit - len(records), _BATCH), records)
            except BusUnavailableError:
                if self._link.closed.is_set() or asyncio.get_running_loop().time() >= deadline:
                    raise
                has_more = True
            if not has_more:
                break
            after = records[-1].seq if records else after
        return records

    async def _batch(self, stream: str, subject: str, after: int, limit: int, records: list[Record]) -> bool:
        """Append one batch to `records`; whether more may follow. What came before a loss stays appended."""
        loop = asyncio.get_running_loop()
        await self._link.ready(loop.time() + _SILENCE_S)
        request = {"next_by_subj": subject, "seq": after + 1, "batch": limit, "max_bytes": _BATCH_BYTES}
        replies = _Replies()
        reply = self._link.expect(replies.take)
        try:
            await self._link.send(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=reply)
            is_silent = not await replies.until_over()
        finally:
            self._link.forget(reply)
        records += [_stored(frame) for frame in replies.frames]
        if is_silent:
            raise BusUnavailableError(f"stream {stream}: no answer to a read")
        last = replies.last
        if last is None:
            raise BusUnavailableError(f"stream {stream}: connection lost while reading")
        if last.status == "204":
            return last.headers.get("Nats-Num-Pending", "0") != "0"
        if last.status != "404":
            _checked(stream, last)
        return False


class _Replies:
    """The records of one batch, and the control message (or None, for a lost connection) behind them."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.last: Frame | None = None
        self._over = asyncio.Event()

    def take(self, frame: Frame | None) -> None:
        """One reply more."""
        if frame is not None and not frame.status:
            self.frames.append(frame)
            return
        self.last = frame
        self._over.set()

    async def until_over(self) -> bool:
        """Wait for the end; False when nothing more came for too long."""
        num_seen = -1
        while not self._over.is_set() and len(self.frames) > num_seen:
            num_seen = len(self.frames)
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_S):
                    await self._over.wait()
        return self._over.is_set()


def live_record(frame: Frame) -> Record:
    """A frame received on a core subject; republished ones carry their sequence and the previous one."""
    previous = frame.headers.get("Nats-Last-Sequence")
    return Record(
        subject=frame.subject,
        data=frame.data,
        seq=int(frame.headers.get("Nats-Sequence", 0)),
        prev=None if previous is None else int(previous),
        reason=_reason(frame.headers),
    )


def _stored(frame: Frame) -> Record:
    headers = frame.headers
    return Record(
        subject=headers["Nats-Subject"],
        data=frame.data,
        seq=int(headers["Nats-Sequence"]),
        time_s=datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
        reason=_reason(headers),
    )


def _checked(stream: str, frame: Frame) -> Frame:
    if frame.status == NO_RESPONDERS:
        raise MissingError(f"stream {stream} does not exist or does not allow direct gets")
    if frame.status:
        raise BusError(f"stream {stream}: {frame.headers.get('Description', '')} ({frame.status})")
    return frame


def _reason(headers: Mapping[str, str]) -> str | None:
    return headers.get("Nats-Marker-Reason") or headers.get("KV-Operation")
