"""A stream joined again: GET /headrace/requests/<rid>/stream?offset=N, from any ingress process.

Frames are a function of the run log alone, so the rest of a stream is its frames without the first N. Leaving a resumed
stream cancels nothing.
"""

import asyncio
import time
from collections.abc import Sequence

from aiohttp import web

from headrace.ingress import sse
from headrace.ingress.account import Account
from headrace.ingress.dialect import HttpError, Problem
from headrace.ingress.feed import Feed, Item
from headrace.ingress.front import Front
from headrace.ingress.generation import fingerprint
from headrace.ingress.identity import caller_of, identity_of
from headrace.ingress.protocols import PROTOCOLS, Encoder, Head
from headrace.ingress.relay import Relay
from headrace.ingress.requests import find_run
from headrace.ingress.stream import EventStream
from headrace.shared import subjects
from headrace.shared.bus import Bus, Record
from headrace.shared.errors import Code, RequestError
from headrace.shared.records import FinRecord, ReqRecord, TokRecord
from headrace.shared.telemetry import metrics

_MARGIN_S = 5.0
"""A request ends by itself within its total timeout; whatever is silent for longer has no end."""


class ResumeRoute:
    """Any ingress resumes the streams of all."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The rest of the stream in the dialect of its request; a plain request resumes as a stream."""
        rid = request.match_info["rid"]
        offset = _offset(request)
        ing, log = await find_run(self._front.bus, rid)
        assert log.req is not None, "found by its `req` record"
        encoder = Rest(_encoder(rid, log.req), offset)
        identity = identity_of(request)
        identity.rid, identity.is_generation = rid, True
        with Account(rid, caller_of(request)) as account, metrics.active(metrics.MAP_SIZE.labels(name="resumed")):
            async with Follower(self._front, ing, rid, _seconds_left(log.req)) as follower:
                relay = Relay(follower, encoder, account, "messages")
                return await relay.stream(EventStream(request, self._front.config.ingress))


class Follower:
    """A reader of one run log from its beginning: what is stored first, then what comes."""

    def __init__(self, front: Front, ing: str, rid: str, seconds_left: float) -> None:
        self._bus: Bus = front.bus
        self._subject = subjects.out_of(ing, rid)
        self._feed = Feed(ing, rid, front.config.ingress.silence_s)
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + seconds_left

    async def __aenter__(self) -> "Follower":
        self._subscription = await self._bus.subscribe(self._subject, self._on_record)
        self._feed.recheck()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.close()
        await self._subscription.close()

    async def next(self, wake_at: float) -> Item | None:
        """See `relay.Source`."""
        while True:
            item = self._feed.pop()
            if item is not None:
                return item
            now = self._loop.time()
            if now >= wake_at:
                return None
            if now >= self._due:
                raise RequestError(Code.TIMEOUT, "the request took longer than its total timeout")
            if now >= self._feed.check_at:
                await self._feed.replay(self._bus)
            else:
                await self._feed.wait(min(wake_at, self._due, self._feed.check_at))

    async def _on_record(self, record: Record) -> None:
        self._feed.offer(record)


class Rest:
    """An encoder without its first `offset` frames; `[DONE]` is no frame and always stays."""

    def __init__(self, encoder: Encoder, offset: int) -> None:
        self._encoder = encoder
        self._left = offset

    def tok(self, record: TokRecord) -> list[bytes]:
        """See `Encoder.tok`."""
        return self._cut(self._encoder.tok(record))

    def fin(self, record: FinRecord) -> list[bytes]:
        """See `Encoder.fin`."""
        return self._cut(self._encoder.fin(record))

    def failure(self, problem: Problem) -> list[bytes]:
        """See `Encoder.failure`."""
        return self._cut(self._encoder.failure(problem))

    def reply(self, toks: Sequence[TokRecord], fin: FinRecord) -> bytes:
        """See `Encoder.reply`."""
        return self._encoder.reply(toks, fin)

    def _cut(self, frames: list[bytes]) -> list[bytes]:
        num = min(self._left, sum(frame != sse.DONE for frame in frames))
        self._left -= num
        return frames[num:]


def _encoder(rid: str, req: ReqRecord) -> Encoder:
    adapter = next((adapter for adapter in PROTOCOLS if adapter.protocol == req.protocol), None)
    if adapter is None:
        raise HttpError(404, f"requests of the protocol {req.protocol!r} cannot be resumed")
    head = Head(rid=rid, created=req.created_ms // 1000, model=req.model, fingerprint=fingerprint(req.revision))
    return adapter.encoder(head, bytes(req.render))


def _offset(request: web.Request) -> int:
    text = request.query.get("offset", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:  # nine digits: more than any stream has
        raise RequestError(Code.INVALID_REQUEST, "offset must be a number of frames, 0 or more", param="offset")
    return int(text)


def _seconds_left(req: ReqRecord) -> float:
    age_s = max(0.0, time.time() - req.created_ms / 1000)
    return max(_MARGIN_S, req.total_s - age_s + _MARGIN_S)
