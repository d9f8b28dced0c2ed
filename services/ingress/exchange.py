"""One request's life at the front door: publish, wait under the deadlines that no worker keeps, end it exactly once.

Leaving the context without having seen the terminal record means that nobody waits any more (the client is gone, or its
log cannot be followed): the request is cancelled then, at once and whatever else happens to the handler.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Literal, Self

import structlog

from headrace.ingress.endings import end_unrun, purge_work
from headrace.ingress.feed import Item
from headrace.ingress.inbox import Inbox
from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus
from headrace.shared.errors import BusError, Code, Failure, QueueFullError, RequestError
from headrace.shared.messages import Accepted, encode
from headrace.shared.records import CancelRecord, FinRecord, ReqRecord
from headrace.shared.streams import MAX_ITEM_BYTES

_CLEANUP_S = 5.0
_QUEUE_AWAY = "the queue does not answer"
_TIMEOUTS = {
    Code.QUEUE_TIMEOUT: "no worker was free in time",
    Code.FIRST_TOKEN_TIMEOUT: "the first token did not come in time",
    Code.TIMEOUT: "the request took longer than its total timeout",
}

log = structlog.get_logger()


class Cleanups:
    """Owns the work that outlives its handler."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run on its own: neither cancelled with its caller nor waited for by a client."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for everything that still runs."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Exchange:
    """Use as an async context manager around `submit` and `next`."""

    def __init__(self, bus: Bus, inbox: Inbox, cleanups: Cleanups, ing: str, accepted: Accepted) -> None:
        self._bus = bus
        self._inbox = inbox
        self._cleanups = cleanups
        self._ing = ing
        self._accepted = accepted
        self._rid = accepted.request.rid
        self._loop = asyncio.get_running_loop()
        self._feed = inbox.open(self._rid)
        self._is_open = False
        """Whether the request may be running: from the first publish to the terminal record."""
        self._has_token = False
        self._accepted_at = self._loop.time()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.close(self._feed)
        if self._is_open:
            self._is_open = False
            self._cleanups.start(self._abandon())

    async def submit(self, record: ReqRecord) -> None:
        """Make the request durable. Raises RequestError when the queue refuses or does not answer."""
        item = encode(self._accepted)
        if len(item) > MAX_ITEM_BYTES:
            message = f"the request takes {len(item)} bytes in the queue, which holds at most {MAX_ITEM_BYTES}"
            raise RequestError(Code.BODY_TOO_LARGE, message)
        self._is_open = True
        await self._publish(encode(record), item)
        self._accepted_at = self._loop.time()
        self._feed.listen()

    async def _publish(self, record: bytes, item: bytes) -> None:
        """Store the log's first record and the work item, which travel together: accepted means that both are stored.

        Otherwise the request is taken back: without a trace if the work was refused, else as one that may be running.
        """
        request = self._accepted.request
        req, tok = await asyncio.gather(
            self._bus.publish(subjects.run(self._ing, self._rid, "req"), record, msg_id=f"{self._rid}:req"),
            self._bus.publish(subjects.tok(request.cls, self._rid), item, msg_id=self._rid),
            return_exceptions=True,
        )
        if isinstance(tok, QueueFullError):
            await self._withdraw()
        elif isinstance(req, QueueFullError):
            await self._quietly(purge_work(self._bus, self._rid))
        for outcome in (tok, req):
            if isinstance(outcome, QueueFullError):
                raise RequestError(Code.OVERLOADED, "the queue is full") from outcome
            if isinstance(outcome, BusError):
                log.warning("request_not_published", request=self._rid, reason=str(outcome))
                raise RequestError(Code.OVERLOADED, _QUEUE_AWAY) from outcome
            if isinstance(outcome, BaseException):
                raise outcome

    async def next(self, wake_at: float) -> Item | None:
        """The next record, or None at the loop time `wake_at`. Raises RequestError when a deadline passed."""
        while True:
            item = self._feed.pop()
            if item is not None:
                self._has_token = True
                is_over = isinstance(item, FinRecord) and not self._feed.is_broken
                self._is_open = self._is_open and not is_over
                return item
            now = self._loop.time()
            if now >= wake_at:
                return None
            due, code = self._deadline()
            if now >= due:
                await self._expire(code)
            elif now >= self._feed.check_at:
                await self._inbox.replay(self._feed)
            else:
                await self._feed.wait(min(wake_at, due, self._feed.check_at))

    def _deadline(self) -> tuple[float, Code]:
        """The earliest deadline that still applies, loop time."""
        limits = self._accepted.request.deadlines
        due, code = self._accepted_at + limits.total_s, Code.TIMEOUT
        if not self._has_token:
            first_token = self._accepted_at + limits.first_token_s
            if first_token < due:
                due, code = first_token, Code.FIRST_TOKEN_TIMEOUT
            queue = self._accepted_at + limits.queue_s
            if not self._feed.is_leased and queue < due:
                due, code = queue, Code.QUEUE_TIMEOUT
        return due, code

    async def _expire(self, code: Code) -> None:
        """A deadline passed: end the request, unless the log shows that it was met after all."""
        await self._inbox.replay(self._feed)
        if self._deadline()[0] > self._loop.time() or self._feed.is_ended:
            return
        is_ended = await self._end(Failure(code=code, message=_TIMEOUTS[code]))
        if code is Code.QUEUE_TIMEOUT and is_ended is False:
            self._feed.is_leased = True
            return
        if not is_ended:
            await self._quietly(self._cancel("timeout"))
        self._is_open = False
        log.info("deadline_passed", request=self._rid, code=code)
        raise RequestError(code, _TIMEOUTS[code])

    async def _end(self, failure: Failure) -> bool | None:
        """End the request if nobody runs it; False when somebody does, None when the queue does not say."""
        if self._feed.is_leased:
            return False
        try:
            return await end_unrun(self._bus, self._ing, self._rid, self._ing, failure)
        except BusError as error:
            log.warning("request_not_ended", request=self._rid, reason=str(error))
            return None

    async def _abandon(self) -> None:
        """Nobody waits any more: tombstone first, so that whoever holds the request drops it."""
        log.info("request_abandoned", request=self._rid)
        await self._quietly(self._cancel("disconnect"))
        await self._quietly(self._end_abandoned())

    async def _end_abandoned(self) -> None:
        await self._end(Failure(code=Code.CANCELLED, message="the client closed the connection"))

    async def _withdraw(self) -> None:
        """The queue refused the work: no trace of the request stays."""
        self._is_open = False
        await self._quietly(self._purge_log())

    async def _purge_log(self) -> None:
        await self._bus.purge(subjects.RUN, subjects.run(self._ing, self._rid, ">"))

    async def _cancel(self, reason: Literal["disconnect", "timeout"]) -> None:
        await runlog.cancel(self._bus, self._ing, self._rid, CancelRecord(reason=reason, by=self._ing))

    async def _quietly(self, work: Awaitable[None]) -> None:
        """Best effort within a deadline: a queue that is away must not hold up the answer."""
        try:
            async with asyncio.timeout(_CLEANUP_S):
                await work
        except (BusError, TimeoutError) as error:
            log.warning("cleanup_incomplete", request=self._rid, reason=str(error))
