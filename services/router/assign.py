"""Giving one routed item to a worker: cancelled and late ones are ended, the rest is published and acked."""

import asyncio
import secrets
from collections import Counter

import msgspec
import structlog

from headrace.router.fleet import Fleet
from headrace.shared import runlog, subjects
from headrace.shared.age import is_older
from headrace.shared.attempts import history
from headrace.shared.bus import Bus, Delivery
from headrace.shared.cancels import Cancels
from headrace.shared.config import Config
from headrace.shared.deadletters import bury, decode_or_bury
from headrace.shared.errors import Code, Failure, QueueFullError
from headrace.shared.handover import is_made_from
from headrace.shared.messages import Tokenized
from headrace.shared.records import FinRecord
from headrace.shared.registry import Registry
from headrace.shared.runlog import RunLog, summary

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Tokenized)

_REFUSALS = {
    Code.CANCELLED: "the request was cancelled",
    Code.QUEUE_TIMEOUT: "no worker became free in time",
    Code.TIMEOUT: "the request took longer than its total timeout",
    Code.WORKER_CRASHED: "the request was given up after several workers died while running it",
}


class Assigner:
    """Handles items of `work.route.*` and `work.place.*`."""

    def __init__(
        self,
        bus: Bus,
        wid: str,
        config: Config,
        registry: Registry,
        *,
        fleet: Fleet,
        cancels: Cancels,
        draining: asyncio.Event,
    ) -> None:
        """While `draining`, items that wait for a worker are given back for another router."""
        self._bus = bus
        self._wid = wid
        self._config = config
        self._registry = registry
        self._fleet = fleet
        self._cancels = cancels
        self._draining = draining
        self._waiting: Counter[str] = Counter()
        """Interactive requests that wait here, per model: batch requests let them go first."""

    async def handle(self, delivery: Delivery) -> None:
        """Place one item; returns once it is published to a worker, ended, or handed over already."""
        item = await decode_or_bury(self._bus, self._wid, delivery, _decoder)
        if item is None:
            return
        if delivery.num_delivered > 1 and await self._is_placed(delivery):
            await self._bus.ack(delivery)
            return
        run = RunLog()
        if not _is_on_first_way(delivery, item):
            run = await runlog.read_log(self._bus, item.request.ing, item.request.rid)
        if run.fin is not None:
            await self._bus.ack(delivery)
            return
        try:
            refusal = await self._wait_and_place(delivery, item, run)
        finally:
            self._fleet.unreserve(item.request.rid)
        if refusal is not None:
            await self._end(delivery, item, run, refusal)

    async def _wait_and_place(self, delivery: Delivery, item: Tokenized, run: RunLog) -> Code | None:
        """Place the item as soon as a worker has room; returns the reason when it must be ended instead."""
        request = item.request
        past = history(run, lambda wid: self._registry.get(wid) is not None)
        max_attempts = self._config.decode.max_attempts
        if past.attempt > max_attempts or max(item.deaths.values(), default=0) >= max_attempts:
            return Code.WORKER_CRASHED
        if run.cancel is not None or request.rid in self._cancels:
            return Code.CANCELLED
        queue_s = request.deadlines.queue_s if run.lease is None else request.deadlines.total_s
        while not await is_older(self._bus, self._wid, item.accepted_ms / 1000, queue_s):
            if await self._place(delivery, item, alone=past.is_suspect):
                return None
            if self._draining.is_set():
                await self._bus.nak(delivery)
                return None
            await self._wait(item, alone=past.is_suspect)
            if request.rid in self._cancels:
                return Code.CANCELLED
        return Code.QUEUE_TIMEOUT if run.lease is None else Code.TIMEOUT

    async def _wait(self, item: Tokenized, *, alone: bool) -> None:
        """Until something may have changed. A suspect, which may wait for long, holds no batch requests up."""
        model = item.request.model
        is_ahead = item.request.cls == "int" and not alone
        self._waiting[model] += is_ahead
        try:
            await self._fleet.changed(timeout_s=1.0)
        finally:
            self._waiting[model] -= is_ahead

    async def _place(self, delivery: Delivery, item: Tokenized, *, alone: bool) -> bool:
        request = item.request
        if request.cls == "bat" and self._waiting[request.model]:
            return False
        wants_prefill = self._fleet.needs_prefill(item, self._config.router.direct_tokens)
        stage = "prefill" if wants_prefill else "decode"
        wid = self._fleet.choose(stage, item, alone=alone)
        if wid is None:
            return False
        self._fleet.assigned(wid, stage, item, alone=alone)
        if not await self._publish(stage, wid, delivery):
            self._fleet.unassigned(wid, request.rid)
            return False
        await self._bus.ack(delivery)
        log.info("assigned", request=request.rid, to=wid, num_delivered=delivery.num_delivered, alone=alone)
        return True

    async def _publish(self, stage: str, wid: str, delivery: Delivery) -> bool:
        """Put the item in the worker's queue; False while the item it was made from is still there."""
        rid = subjects.rid_of(delivery.subject)
        stream, subject = subjects.PREQ, subjects.pre(wid, rid)
        if stage == "decode":
            stream, subject = subjects.DECQ, subjects.dec(wid, rid)
        try:
            # An id for this try alone: what an earlier delivery stored may have been taken back from a dead worker.
            await self._bus.publish(subject, delivery.data, msg_id=f"{rid}:{secrets.token_hex(8)}")
        except QueueFullError as error:
            if not error.duplicate:
                raise
            return await is_made_from(self._bus, stream, subject, delivery)
        return True

    async def _is_placed(self, delivery: Delivery) -> bool:
        """Whether an earlier delivery of this item, or somebody else, has put the request in a worker's queue since."""
        rid = subjects.rid_of(delivery.subject)
        places = ((subjects.PREQ, subjects.pre("*", rid)), (subjects.DECQ, subjects.dec("*", rid)))
        return any([await is_made_from(self._bus, stream, subject, delivery) for stream, subject in places])

    async def _end(self, delivery: Delivery, item: Tokenized, run: RunLog, code: Code) -> None:
        request = item.request
        failure = Failure(code=code, message=_REFUSALS[code])
        attempts = 1 if run.lease is None else run.lease.attempt
        if code is Code.WORKER_CRASHED:
            await bury(self._bus, self._wid, delivery, failure, attempts=attempts)
        ended = await runlog.end(
            self._bus,
            request.ing,
            request.rid,
            self._wid,
            FinRecord(failure=failure, attempts=attempts, choices=summary(run), prompt=run.prompt),
            over=run.lease_seq,
        )
        await self._bus.ack(delivery, wait=True)
        log.info("request_ended", request=request.rid, code=code, ended=ended)


def _is_on_first_way(delivery: Delivery, item: Tokenized) -> bool:
    """Whether no worker can have held the request yet, so that its log has nothing to say about placing it.

    What comes back from a decode worker comes as a `place` item, what comes back from prefill counts a death. Whoever
    takes the request reads its log all the same.
    """
    return delivery.num_delivered == 1 and not item.deaths and delivery.subject.startswith("work.route.")
