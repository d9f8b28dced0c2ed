"""What every stage process is built on: connection, registry, heartbeat, metrics, signals, drain, exit code.

A stage is one coroutine `main(worker)` that reports itself ready, pulls its queues until `worker.draining` is set,
finishes what it holds and returns. Everything else of its life is here.
"""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

import msgspec
import structlog
import uvloop

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.bus.nats import NatsBus, connect
from headrace.shared.config import Config
from headrace.shared.deadletters import answer_failure
from headrace.shared.errors import ConfigError
from headrace.shared.ids import new_wid
from headrace.shared.registry import Heartbeat, Registry
from headrace.shared.reports import State, WorkerReport
from headrace.shared.slots import Puller, Slots
from headrace.shared.telemetry import log as logs
from headrace.shared.telemetry import metrics

log = structlog.get_logger()

_RENEW_S = {subjects.TOKQ: 1.5, subjects.RTEQ: 0.5, subjects.PREQ: 3.0, subjects.DECQ: 3.0}

Main = Callable[["Worker"], Awaitable[None]]


UNROUTED_LOOK_S = 0.5
"""How often workers look whether the router is gone: rarely, for it would be most of what they do while idle."""


class Source(msgspec.Struct, frozen=True):
    """One consumer a stage pulls, with the handler of its items."""

    stream: str
    consumer: str
    handle: Callable[[Delivery], Awaitable[None]]
    enabled: Callable[[], bool] = lambda: True
    """While False the consumer is left alone."""
    look_s: float = 0.1
    """How often a consumer that is left alone is looked at again."""

    @property
    def renew_s(self) -> float:
        """Seconds between two renewals of an ack timer: a third of the consumer's ack wait, or less."""
        return _RENEW_S[self.stream]


class Worker:
    """One process of a stage, as its main coroutine sees it."""

    def __init__(self, config: Config, stage: str, wid: str, bus: Bus) -> None:
        self.config = config
        self.stage = stage
        self.wid = wid
        self.bus = bus
        self.registry = Registry(bus)
        self.draining = asyncio.Event()
        self.ready = asyncio.Event()
        """Everything is loaded."""
        self.is_alive: Callable[[], bool] = lambda: True
        """Whether the worker makes progress: gates heartbeats and ack timers."""
        self.collect: Callable[[], dict[str, object]] = dict
        """Gives the report fields that change all the time (load, rates); read at every beat."""
        self._report = WorkerReport(stage=stage, wid=wid, pid=os.getpid(), started_ms=time.time_ns() // 1_000_000)
        self.heartbeat = Heartbeat(bus, self._current)
        self._slots: list[Slots] = []
        metrics.SLOTS_USED.set_function(lambda: sum(slots.used for slots in self._slots))

    @property
    def report(self) -> WorkerReport:
        """The report as it stands, without the fields of `collect`."""
        return self._report

    def update(self, **fields: object) -> None:
        """Change fields of the report and send it soon."""
        self._report = msgspec.structs.replace(self._report, **fields)
        if self._report.state is State.READY:
            self.ready.set()
        self.heartbeat.touch()

    async def drain(self) -> None:
        """Take no more work. Routers hear of it before anything is handed over, or they would send it right back."""
        self.update(state=State.DRAINING)
        await self.heartbeat.beat()
        self.draining.set()

    def is_unrouted(self) -> bool:
        """Whether no router is there, so that workers pull the router's queue themselves."""
        return not self.registry.ready("router")

    async def pull(self, sources: Sequence[Source], slots: Slots) -> None:
        """Pull all sources until draining, then wait for what was started.

        A loop that breaks ends the others: a worker must not stay registered and take nothing.
        """
        answer = partial(answer_failure, self.bus, self.wid)
        puller = Puller(self.bus, slots, self.draining, on_failure=answer, is_alive=self.is_alive)
        self._slots.append(slots)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(puller.renew())
                async with asyncio.TaskGroup() as pulling:
                    for source in sources:
                        pulling.create_task(self._pull(puller, source))
                await puller.settle()
                renewing.cancel()
        finally:
            await puller.abandon()

    async def _pull(self, puller: Puller, source: Source) -> None:
        age = metrics.QUEUE_AGE_SECONDS.labels(stage=self.stage)

        async def handle(delivery: Delivery) -> None:
            age.observe(max(0.0, time.time() - delivery.time_s))
            await source.handle(delivery)

        await puller.run(
            source.stream,
            source.consumer,
            handle,
            renew_s=source.renew_s,
            enabled=source.enabled,
            look_s=source.look_s,
        )

    def _current(self) -> WorkerReport | None:
        if not self.is_alive():
            return None
        taken = sum(slots.taken for slots in self._slots)
        return msgspec.structs.replace(self._report, taken=taken, **self.collect())


def run_stage(config: Config, stage: str, main: Main) -> int:
    """Run one stage process to its end: 0 after a drain, 1 when it failed or lost the server for good.

    Raises ConfigError when the server cannot be used at start (exit code 78).
    """
    wid = os.environ.get("HEADRACE_WID") or new_wid(stage)
    logs.setup(config.log, stage, wid)
    return uvloop.run(_serve(config, stage, wid, main))


async def _serve(config: Config, stage: str, wid: str, main: Main) -> int:
    async with _connected(config, wid) as bus:
        worker = Worker(config, stage, wid, bus)
        _drain_on_signals(worker)
        worker.update(metrics=metrics.serve())
        await worker.registry.start()
        beating = asyncio.create_task(worker.heartbeat.run())
        settling = asyncio.create_task(_settle_heap(worker))
        log.info("stage_starting", pid=os.getpid())
        try:
            return await _run_main(worker, main, beating, asyncio.create_task(bus.closed.wait()))
        finally:
            beating.cancel()
            settling.cancel()
            await asyncio.gather(beating, settling, return_exceptions=True)
            await worker.heartbeat.withdraw()
            await worker.registry.close()
            log.info("stage_stopped")


async def _settle_heap(worker: Worker) -> None:
    """What was loaded stays: walking through it with every full collection would only make requests wait."""
    await worker.ready.wait()
    gc.collect()
    gc.freeze()


async def _run_main(
    worker: Worker, main: Main, beating: "asyncio.Task[None]", lost: "asyncio.Task[Literal[True]]"
) -> int:
    """Run `main` to its end, or until the worker can be of no use: without heartbeats, or without the server."""
    running = asyncio.ensure_future(main(worker))
    try:
        await asyncio.wait({running, beating, lost}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            return 0
        if beating.done():
            log.error("heartbeat_stopped", exc_info=beating.exception())
        else:
            log.error("server_connection_closed")
        return 1
    finally:
        lost.cancel()
        running.cancel()
        await asyncio.gather(running, lost, return_exceptions=True)


@contextlib.asynccontextmanager
async def _connected(config: Config, wid: str) -> AsyncIterator[NatsBus]:
    if not config.nats.url:
        raise ConfigError("nats.url is not set: a stage needs a running server (headrace up starts its own)")
    bus = await connect(config.nats.url, name=wid, timeout_s=config.nats.connect_s)
    try:
        drift = await streams.check(bus)
        if drift:
            raise ConfigError(f"the streams are not as expected: {'; '.join(drift)}")
        yield bus
    finally:
        await bus.close()


def _drain_on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    orders: set[asyncio.Task[None]] = set()

    def drain() -> None:
        log.info("draining")
        orders.add(loop.create_task(worker.drain()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
