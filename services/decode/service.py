"""The decode stage: takes placed requests, generates, writes their logs, ends them."""

import asyncio
import time
from dataclasses import dataclass, field

import msgspec
import structlog

from headrace.decode.claim import Claim, claim
from headrace.decode.run import Run
from headrace.decode.terms import Outcome, Settings, Signals
from headrace.shared import runlog, subjects
from headrace.shared.bus import Delivery
from headrace.shared.cancels import Cancels
from headrace.shared.catalogue import lookup
from headrace.shared.config import Config
from headrace.shared.deadletters import bury, decode_or_bury
from headrace.shared.errors import BusError, Code, Failure
from headrace.shared.handover import requeue
from headrace.shared.messages import Tokenized, encode
from headrace.shared.packing import num_packed
from headrace.shared.records import FinRecord
from headrace.shared.reports import State
from headrace.shared.serving import Models, open_models
from headrace.shared.slots import Slots
from headrace.shared.stage import UNROUTED_LOOK_S, Source, Worker, run_stage
from headrace.shared.telemetry import metrics
from headrace.shared.text.model import TextModel, load_text_model

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Tokenized)
_CANCEL_CHECK_S = 2.0


def run(config: Config) -> int:
    """Run one decode process; returns its exit code."""
    return run_stage(config, "decode", serve)


async def serve(worker: Worker) -> None:
    """Load the models, then generate until draining."""
    slots = Slots(worker.config.decode.slots)
    worker.update(slots=slots.total)
    async with open_models(worker.config, "decode") as models:
        worker.is_alive = models.is_alive
        stage = _Decode(worker, models, await _load_texts(worker.config))
        cancels = Cancels(worker.bus, stage.on_cancel)
        await cancels.start()
        worker.collect = lambda: {
            "active": slots.used,
            "queued_tokens": stage.tokens_left(),
            "prompt_tokens": stage.prompt_tokens_left(),
            **models.load(),
        }
        worker.update(state=State.READY, models=models.reports())
        try:
            await models.until_failed(worker.pull(stage.sources(), slots), stage.check_cancels(cancels))
        finally:
            await cancels.close()


async def _load_texts(config: Config) -> dict[str, TextModel]:
    def load() -> dict[str, TextModel]:
        files = [lookup.resolve(name, config.model.dir, check=False) for name in config.model.names]
        return {one.name: load_text_model(one) for one in files}

    return await asyncio.to_thread(load)


@dataclass(slots=True)
class _Held:
    ing: str
    prompt_tokens: int
    """Tokens of the prompt to be computed here, as far as anybody knows before it runs."""
    new_tokens: int
    """Tokens to be generated, likewise."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The handler is through with the request, one way or another."""
    has_ended: bool = False
    """The request has its end, so that every further copy of it is only to be acked."""
    run: Run | None = None


class _Decode:
    """Handles items of this worker's own queue, and of the shared one while no router is there."""

    def __init__(self, worker: Worker, models: Models, texts: dict[str, TextModel]) -> None:
        self._worker = worker
        self._bus = worker.bus
        self._models = models
        self._texts = texts
        self._held: dict[str, _Held] = {}
        metrics.MAP_SIZE.labels(name="decode_held").set_function(lambda: len(self._held))
        self._settings = Settings(
            wid=worker.wid,
            chunk_tokens=worker.config.decode.chunk_tokens,
            default_sampling=worker.config.model.default_sampling,
        )

    def sources(self) -> list[Source]:
        """The consumers this worker pulls."""
        own = subjects.worker_consumer("decode", self._worker.wid)
        unrouted = self._worker.is_unrouted
        return [
            Source(subjects.DECQ, own, self.handle),
            Source(subjects.RTEQ, "place-int", self.handle, unrouted, look_s=UNROUTED_LOOK_S),
            Source(subjects.RTEQ, "place-bat", self.handle, unrouted, look_s=UNROUTED_LOOK_S),
        ]

    def tokens_left(self) -> int:
        """Tokens of work held."""
        return sum(held.run.tokens_left if held.run else held.new_tokens for held in self._held.values())

    def prompt_tokens_left(self) -> int:
        """Prompt tokens to be computed here."""
        return sum(held.prompt_tokens for held in self._held.values() if held.run is None or not held.run.has_begun)

    def on_cancel(self, rid: str) -> None:
        """Stop a request whose client left."""
        held = self._held.get(rid)
        if held is not None:
            held.cancelled.set()

    async def check_cancels(self, cancels: Cancels) -> None:
        """Look for tombstones that no live message brought, now and then."""
        while True:
            await asyncio.sleep(_CANCEL_CHECK_S)
            for rid, held in list(self._held.items()):
                try:
                    if not held.cancelled.is_set() and await cancels.is_cancelled(held.ing, rid):
                        held.cancelled.set()
                except BusError as error:
                    log.warning("cancel_check_failed", request=rid, reason=str(error))

    async def handle(self, delivery: Delivery) -> None:
        """Run one request to its end on this worker."""
        item = await decode_or_bury(self._bus, self._worker.wid, delivery, _decoder)
        if item is None:
            return
        rid = item.request.rid
        while (running := self._held.get(rid)) is not None:
            # A second delivery of a request that runs here waits: it answers for the request should the first fail.
            await running.left.wait()
            if running.has_ended:
                await self._bus.ack(delivery)
                return
        self._worker.heartbeat.touch()
        self._held[rid] = held = _Held(
            item.request.ing, num_packed(item.prompt_ids) - item.prefilled, item.request.max_new or 0
        )
        try:
            with metrics.active(metrics.REQUESTS_ACTIVE.labels(stage="decode")):
                outcome = await self._run(delivery, item, held)
                held.has_ended = outcome is Outcome.DONE
                await self._settle(delivery, item, outcome)
        finally:
            del self._held[rid]
            held.left.set()
            self._worker.heartbeat.touch()

    async def _run(self, delivery: Delivery, item: Tokenized, held: _Held) -> Outcome:
        started_s = time.monotonic()
        claimed = await claim(self._bus, self._worker.registry, self._worker.wid, delivery, item)
        if claimed is None:
            return Outcome.DONE
        served = self._models.get(item.request.model)
        text = self._texts.get(item.request.model)
        if served is None or text is None:
            failure = Failure(code=Code.MODEL_NOT_FOUND, message="this worker does not serve the model")
            return await self._end(claimed, failure, claimed.lease.attempt)
        age_s = max(0.0, delivery.time_s - item.accepted_ms / 1000)
        signals = Signals(held.cancelled, self._worker.draining, started_s=started_s, age_s=age_s)
        if claimed.lease.attempt > self._worker.config.decode.max_attempts:
            return await self._give_up(delivery, claimed)
        held.run = Run(self._bus, item, claimed, served, text, self._settings)
        log.debug("request_started", request=item.request.rid, attempt=claimed.lease.attempt)
        return await held.run.execute(signals)

    async def _give_up(self, delivery: Delivery, claimed: Claim) -> Outcome:
        """End a request that several workers died on; with a router there this happens before it gets here."""
        failure = Failure(code=Code.WORKER_CRASHED, message="the request was given up after several workers died")
        num_deaths = claimed.lease.attempt - 1
        await bury(self._bus, self._worker.wid, delivery, failure, attempts=num_deaths)
        return await self._end(claimed, failure, num_deaths)

    async def _end(self, claimed: Claim, failure: Failure, attempts: int) -> Outcome:
        """End a request that is not run here."""
        choices, prompt = runlog.summary(claimed.log), claimed.log.prompt
        fin = FinRecord(failure=failure, attempts=attempts, choices=choices, prompt=prompt)
        return Outcome.DONE if await runlog.finish(self._bus, claimed.lease, fin) else Outcome.LOST

    async def _settle(self, delivery: Delivery, item: Tokenized, outcome: Outcome) -> None:
        """Answer for an item. A lost request is left alone: whoever holds it acks its own item."""
        if outcome is Outcome.LOST:
            return
        if outcome is Outcome.MOVED:
            reason = "drain" if self._worker.draining.is_set() else "stall"
            metrics.LEASE_TAKEOVERS_TOTAL.labels(reason=reason).inc()
            log.info("request_moved_on", request=item.request.rid, reason=reason)
            if delivery.stream == subjects.RTEQ:
                # It is in the router's queue already, where a second copy would be refused: give this one back.
                await self._bus.nak(delivery)
                return
            subject = subjects.place(item.request.cls, item.request.rid)
            await requeue(self._bus, subject, encode(item), delivery.stream, delivery)
            # Confirmed, for this worker may be about to leave. After an end a lost ack costs one look at the log.
            await self._bus.ack(delivery, wait=True)
            return
        await self._bus.ack(delivery)
