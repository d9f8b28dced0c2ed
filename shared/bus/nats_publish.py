"""Storing a message exactly as asked: retries with one identity, and outcomes that are never guessed.

JetStream checks an expected sequence before it looks for a duplicate id, so a retry of a compare-and-set whose first
try was stored is refused; only reading the subject back tells that refusal from a real one.
"""

import asyncio
import secrets

import msgspec

from headrace.shared.bus import Expect
from headrace.shared.bus.nats_api import FENCED, TOO_FAST, ApiError, refusal
from headrace.shared.bus.nats_link import Link
from headrace.shared.bus.nats_read import Reader
from headrace.shared.errors import BusError, BusUnavailableError, MissingError

_TRY_S = 0.7
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_MOMENTARY = frozenset({TOO_FAST, 10008})
"""Too many publishes in flight; JetStream is starting."""


class _PubAck(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    error: ApiError | None = None


_ACK_DECODER = msgspec.json.Decoder(_PubAck)


class Publisher:
    """Publishes over one connection."""

    def __init__(self, link: Link, reader: Reader) -> None:
        self._link = link
        self._reader = reader

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str], *, expect: Expect | None, deadline_s: float
    ) -> int:
        """See `Bus.publish`; `headers` come from `publish_headers`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        pause_s = _FIRST_PAUSE_S
        lost_tries = 0
        while True:
            refused: BusError
            try:
                ack = await self._attempt(subject, data, headers, deadline - loop.time())
            except BusUnavailableError as error:
                if self._link.closed.is_set():
                    raise
                lost_tries += 1
                refused = BusUnavailableError(f"{subject}: outcome unknown after {deadline_s:g} s ({error})")
            else:
                if ack.error is None:
                    return ack.seq
                refused = refusal(subject, ack.error)
                if ack.error.err_code not in _MOMENTARY:
                    return await self._judge(ack, refused, subject, data, expect if lost_tries else None)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            if loop.time() >= deadline:
                raise refused

    async def _attempt(self, subject: str, data: bytes, headers: dict[str, str], left_s: float) -> _PubAck:
        try:
            # A fresh dict each time: the client keeps and changes what it is given.
            frame = await self._link.request(subject, data, headers=dict(headers), timeout_s=min(_TRY_S, left_s))
        except MissingError:
            raise MissingError(f"{subject}: no stream takes this subject") from None
        return _ACK_DECODER.decode(frame.data)

    async def _judge(self, ack: _PubAck, refused: BusError, subject: str, data: bytes, expect: Expect | None) -> int:
        """Raise `refused`, unless a lost try of ours (then `expect` is given) turns out to be what is stored."""
        assert ack.error is not None
        is_own = expect is not None and expect.subject in {None, subject}
        if is_own and ack.error.err_code in FENCED:
            record = await self._reader.last(ack.stream, subject)
            if record is not None and record.data == data:
                return record.seq
        raise refused


def publish_headers(msg_id: str | None, expect: Expect | None, ttl_s: float | None) -> dict[str, str]:
    """JetStream's headers for one publish."""
    headers: dict[str, str] = {}
    if expect is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expect.seq)
        if expect.subject is not None:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = expect.subject
            # A lost try behind a fence cannot be recognised by reading back: only an id makes its repetition safe.
            msg_id = msg_id or secrets.token_hex(8)
    if msg_id is not None:
        headers["Nats-Msg-Id"] = msg_id
    if ttl_s is not None:
        headers["Nats-TTL"] = f"{round(ttl_s * 1000)}ms"
    return headers
