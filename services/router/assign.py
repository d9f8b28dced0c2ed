"""Giving one routed item to a worker: cancelled and late ones are ended, the rest is published and acked."""

import time

import msgspec
import structlog

from headrace.router import policy
from headrace.router.fleet import Fleet
from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.cancels import Cancels
from headrace.shared.config import Config
from headrace.shared.deadletters import bury, decode_or_bury
from headrace.shared.errors import Code, Failure, QueueFullError
from headrace.shared.messages import Tokenized
from headrace.shared.records import FinRecord
from headrace.shared.registry import Registry

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Tokenized)

_REFUSALS = {
    Code.CANCELLED: "the request was cancelled",
    Code.QUEUE_TIMEOUT: "no worker became free in time",
    Code.WORKER_CRASHED: "the request was given up after several workers died while running it",
}


class Assigner:
    """Handles items of `work.route.*` and `work.place.*`."""

    def __init__(self, bus: Bus, wid: str, config: Config, registry: Registry, fleet: Fleet, cancels: Cancels) -> None:
        self._bus = bus
        self._wid = wid
        self._config = config
        self._registry = registry
        self._fleet = fleet
        self._cancels = cancels

    async def handle(self, delivery: Delivery) -> None:
        """Place one item; returns once it is published to a worker, ended, or handed over already."""
        item = await decode_or_bury(self._bus, self._wid, delivery, _decoder)
        if item is None:
            return
        request = item.request
        if delivery.num_delivered > 1 and await self._is_placed(request.rid):
            await self._bus.ack(delivery)
            return
        refusal = await self._wait_and_place(delivery, item)
        if refusal is not None:
            await self._end(delivery, item, refusal)

    async def _wait_and_place(self, delivery: Delivery, item: Tokenized) -> Code | None:
        """Place the item as soon as a worker has room; returns the reason when it must be ended instead."""
        request = item.request
        if max(item.deaths.values(), default=0) >= self._config.decode.max_attempts:
            return Code.WORKER_CRASHED
        if await self._cancels.is_cancelled(request.ing, request.rid):
            return Code.CANCELLED
        waited_from = time.monotonic()
        age_s = max(0.0, delivery.time_s - item.accepted_ms / 1000)
        while not await self._place(delivery, item):
            await self._fleet.changed(timeout_s=1.0)
            if request.rid in self._cancels:
                return Code.CANCELLED
            if age_s + time.monotonic() - waited_from > request.deadlines.queue_s:
                return Code.QUEUE_TIMEOUT
        return None

    async def _place(self, delivery: Delivery, item: Tokenized) -> bool:
        wants_prefill = policy.needs_prefill(item, self._registry.ready("prefill"), self._config.router.direct_tokens)
        stage = "prefill" if wants_prefill else "decode"
        wid = self._fleet.choose(stage, item)
        if wid is None:
            return False
        rid = item.request.rid
        subject = subjects.pre(wid, rid) if wants_prefill else subjects.dec(wid, rid)
        self._fleet.assigned(wid, stage, item)
        try:
            await self._bus.publish(subject, delivery.data, msg_id=f"{rid}:{delivery.stream}:{delivery.seq}")
        except QueueFullError as error:
            if not error.duplicate:
                raise
        await self._bus.ack(delivery)
        log.info("assigned", request=rid, to=wid, num_delivered=delivery.num_delivered)
        return True

    async def _is_placed(self, rid: str) -> bool:
        for stream, subject in ((subjects.PREQ, subjects.pre("*", rid)), (subjects.DECQ, subjects.dec("*", rid))):
            if await self._bus.last(stream, subject) is not None:
                return True
        return False

    async def _end(self, delivery: Delivery, item: Tokenized, code: Code) -> None:
        request = item.request
        failure = Failure(code=code, message=_REFUSALS[code])
        attempts = max(1, sum(item.deaths.values()))
        if code is Code.WORKER_CRASHED:
            await bury(self._bus, self._wid, delivery, failure, attempts=attempts)
        lease = await self._bus.last(subjects.RUN, subjects.run(request.ing, request.rid, "lease"))
        fin = FinRecord(failure=failure, attempts=attempts)
        ended = await runlog.end(
            self._bus, request.ing, request.rid, self._wid, fin, over=lease.seq if lease is not None else 0
        )
        await self._bus.ack(delivery, wait=True)
        log.info("request_ended", request=request.rid, code=code, ended=ended)
