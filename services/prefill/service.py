"""The prefill stage: computes prompts into the shared block store and hands the requests back to the router."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import structlog

from headrace.prefill.handle import prefill
from headrace.shared import subjects
from headrace.shared.bus import Delivery
from headrace.shared.cancels import Cancels
from headrace.shared.config import Config
from headrace.shared.deadletters import decode_or_bury
from headrace.shared.handover import requeue
from headrace.shared.messages import Tokenized, encode
from headrace.shared.packing import num_packed
from headrace.shared.reports import State
from headrace.shared.serving import Models, open_models
from headrace.shared.slots import Slots
from headrace.shared.stage import UNROUTED_LOOK_S, Source, Worker, run_stage
from headrace.shared.telemetry import metrics

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Tokenized)


def run(config: Config) -> int:
    """Run one prefill process; returns its exit code."""
    return run_stage(config, "prefill", serve)


async def serve(worker: Worker) -> None:
    """Load the models, then work until draining."""
    slots = Slots(worker.config.prefill.slots)
    worker.update(slots=slots.total)
    async with open_models(worker.config, "prefill") as models:
        worker.is_alive = models.is_alive
        stage = _Prefill(worker, models)
        await stage.cancels.start()
        worker.collect = lambda: {
            "active": slots.used,
            "queued_tokens": stage.queued_tokens(),
            **models.load(),
        }
        worker.update(state=State.READY, models=models.reports())
        try:
            await models.until_failed(worker.pull(stage.sources(), slots))
        finally:
            await stage.cancels.close()


@dataclass(slots=True)
class _Held:
    tokens: int
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The handler is through with the request, one way or another."""
    is_handed_over: bool = False
    """The request is on its way to decode, so that every further copy of it is only to be acked."""


class _Prefill:
    """Handles items of this worker's own queue, and of the shared one while no router is there."""

    def __init__(self, worker: Worker, models: Models) -> None:
        self._worker = worker
        self._models = models
        self.cancels = Cancels(worker.bus, self.on_cancel)
        """Tombstones, to be followed while this works."""
        self._held: dict[str, _Held] = {}
        metrics.MAP_SIZE.labels(name="prefill_held").set_function(lambda: len(self._held))

    def sources(self) -> list[Source]:
        """The consumers this worker pulls."""
        own = subjects.worker_consumer("prefill", self._worker.wid)
        unrouted = self._worker.is_unrouted
        return [
            Source(subjects.PREQ, own, self.handle),
            Source(subjects.RTEQ, "route-int", self.handle, unrouted, look_s=UNROUTED_LOOK_S),
            Source(subjects.RTEQ, "route-bat", self.handle, unrouted, look_s=UNROUTED_LOOK_S),
        ]

    def queued_tokens(self) -> int:
        """Prompt tokens held."""
        return sum(held.tokens for held in self._held.values())

    def on_cancel(self, rid: str) -> None:
        """Stop computing for a request whose client left."""
        held = self._held.get(rid)
        if held is not None:
            held.cancelled.set()

    async def handle(self, delivery: Delivery) -> None:
        """Compute one prompt and hand it over to be placed."""
        item = await decode_or_bury(self._worker.bus, self._worker.wid, delivery, _decoder)
        if item is None:
            return
        rid = item.request.rid
        while (running := self._held.get(rid)) is not None:
            # A second delivery of a request that is computed here waits: it answers for it should the first fail.
            await running.left.wait()
            if running.is_handed_over:
                await self._worker.bus.ack(delivery)
                return
        self._worker.heartbeat.touch()
        self._held[rid] = held = _Held(num_packed(item.prompt_ids))
        if rid in self.cancels:
            held.cancelled.set()
        try:
            with metrics.active(metrics.REQUESTS_ACTIVE.labels(stage="prefill")):
                done = await self._compute(item, held)
            await self._hand_over(delivery, done)
            held.is_handed_over = True
        finally:
            del self._held[rid]
            held.left.set()
            self._worker.heartbeat.touch()

    async def _compute(self, item: Tokenized, held: _Held) -> Tokenized:
        """The item with its prompt computed; as it came when there is nobody to compute it for, or no model."""
        served = self._models.get(item.request.model)
        if served is not None and not held.cancelled.is_set():
            item = await prefill(item, served, held.cancelled)
        return item if item.cached is not None else msgspec.structs.replace(item, cached=0)

    async def _hand_over(self, delivery: Delivery, item: Tokenized) -> None:
        request = item.request
        subject = subjects.place(request.cls, request.rid)
        await requeue(self._worker.bus, subject, encode(item), delivery.stream, delivery)
        await self._worker.bus.ack(delivery)
        log.info("prefilled", request=request.rid, num_tokens=item.prefilled, num_cached=item.cached)
