"""What happens to one item of the tokenize queue: it is handed on as token ids, or its request ends."""

import asyncio
import traceback
from collections.abc import Mapping
from concurrent.futures import Executor

import msgspec
import structlog

from headrace.shared import runlog, subjects
from headrace.shared.age import is_older
from headrace.shared.bus import Bus, Delivery
from headrace.shared.cancels import Cancels
from headrace.shared.deadletters import bury, decode_or_bury
from headrace.shared.errors import Code, Failure, QueueFullError, RequestError
from headrace.shared.messages import Accepted, Request, Tokenized, encode
from headrace.shared.packing import num_packed
from headrace.shared.records import FinRecord
from headrace.shared.telemetry import metrics
from headrace.tokenize.handle import Rules, Served, is_quick, tokenize

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Accepted)

_CANCELLED = Failure(code=Code.CANCELLED, message="the request was cancelled")
_LATE = Failure(code=Code.QUEUE_TIMEOUT, message="the request waited too long to be tokenized")
_POISON = Failure(code=Code.WORKER_CRASHED, message="the request was given up after several workers died tokenizing it")
_BROKEN = Failure(code=Code.INTERNAL, message="the request could not be tokenized")
_OUTCOMES = {
    Code.CANCELLED: "cancelled",
    Code.QUEUE_TIMEOUT: "timeout",
    Code.INTERNAL: "failed",
    Code.WORKER_CRASHED: "failed",
}
_FULL_S = 0.25
"""Between two tries to put an item into a full queue."""


class Tokenizing:
    """Handles items of `work.tok.*`."""

    def __init__(
        self,
        bus: Bus,
        wid: str,
        models: Mapping[str, Served],
        rules: Rules,
        *,
        threads: Executor,
        cancels: Cancels,
        max_attempts: int,
    ) -> None:
        """`threads` run rendering and encoding, which block; `max_attempts` workers may die on one item."""
        self._bus = bus
        self._wid = wid
        self._models = models
        self._rules = rules
        self._threads = threads
        self._cancels = cancels
        self._max_attempts = max_attempts

    async def handle(self, delivery: Delivery) -> None:
        """Hand one item on, or end its request; raises BusError, which leaves the item to redelivery."""
        item = await decode_or_bury(self._bus, self._wid, delivery, _decoder)
        if item is None:
            return
        with metrics.active(metrics.REQUESTS_ACTIVE.labels(stage="tokenize")):
            outcome = await self._refusal(delivery, item.request) or await self._tokenize(delivery, item)
            failure = await self._hand_on(delivery, outcome) if isinstance(outcome, Tokenized) else outcome
            if failure is not None:
                await self._end(delivery, item.request, failure)

    async def _refusal(self, delivery: Delivery, request: Request) -> Failure | None:
        """Why nothing should be computed for this item."""
        if request.rid in self._cancels:
            return _CANCELLED
        if delivery.num_delivered > 1 and await self._cancels.is_cancelled(request.ing, request.rid):
            return _CANCELLED
        if delivery.num_delivered > self._max_attempts:
            # Handed out again and again without an answer: whoever held it died.
            await bury(self._bus, self._wid, delivery, _POISON, attempts=self._max_attempts)
            return _POISON
        return _LATE if await self._is_late(delivery, request.deadlines.queue_s) else None

    async def _is_late(self, delivery: Delivery, queue_s: float) -> bool:
        return await is_older(self._bus, self._wid, delivery.time_s, queue_s)

    async def _tokenize(self, delivery: Delivery, item: Accepted) -> Tokenized | Failure:
        request = item.request
        served = self._models.get(request.model)
        if served is None:
            message = f"The model `{request.model}` does not exist or is not served."
            return Failure(code=Code.MODEL_NOT_FOUND, message=message, param="model")
        accepted_ms = round(delivery.time_s * 1000)
        loop = asyncio.get_running_loop()
        try:
            if is_quick(item.prompt):
                return tokenize(item, served, self._rules, accepted_ms)
            return await loop.run_in_executor(self._threads, tokenize, item, served, self._rules, accepted_ms)
        except RequestError as error:
            return error.failure
        except Exception as error:  # noqa: BLE001  # one request's bug must not take the stage down
            _log_bug(request.rid, error)
            return _BROKEN

    async def _hand_on(self, delivery: Delivery, item: Tokenized) -> Failure | None:
        """Publish for the router and ack; waits while its queue is full, and says so when that takes too long."""
        request = item.request
        subject = subjects.route(request.cls, request.rid)
        data = encode(item)
        while True:
            try:
                await self._bus.publish(subject, data, msg_id=f"{request.rid}:tok:{delivery.seq}")
                break
            except QueueFullError as error:
                if error.duplicate:
                    break
            if await self._is_late(delivery, request.deadlines.queue_s):
                return _LATE
            await asyncio.sleep(_FULL_S)
        await self._bus.ack(delivery)
        metrics.count_request("tokenize", request.cls, "ok")
        log.debug("tokenized", request=request.rid, num_tokens=num_packed(item.prompt_ids), max_new=request.max_new)
        return None

    async def _end(self, delivery: Delivery, request: Request, failure: Failure) -> None:
        ended = await runlog.end(self._bus, request.ing, request.rid, self._wid, FinRecord(failure=failure))
        await self._bus.ack(delivery, wait=True)
        metrics.count_request("tokenize", request.cls, _OUTCOMES.get(failure.code, "refused"))
        log.info("request_ended", request=request.rid, code=failure.code, ended=ended)


def _log_bug(rid: str, error: Exception) -> None:
    """Log where, not what: the message of an unexpected error can hold prompt text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename}:{frame.lineno}"
    log.error("tokenize_failed", request=rid, error=type(error).__name__, where=where)
