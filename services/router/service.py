"""The router stage: holds the backlog back and gives each request to the worker that can start it first."""

import asyncio
from collections.abc import Awaitable

import structlog

from headrace.router.assign import Assigner
from headrace.router.fleet import Fleet
from headrace.router.reclaim import Reclaimer
from headrace.shared import subjects
from headrace.shared.cancels import Cancels
from headrace.shared.config import Config
from headrace.shared.errors import BusError
from headrace.shared.ids import stage_of
from headrace.shared.reports import State, WorkerReport
from headrace.shared.slots import Slots
from headrace.shared.stage import Source, Worker, run_stage

log = structlog.get_logger()

_AT_ONCE = 64
"""Items looked at at once; those that find no worker wait here, the rest of the backlog in the queue."""


def run(config: Config) -> int:
    """Run one router process; returns its exit code."""
    return run_stage(config, "router", serve)


async def serve(worker: Worker) -> None:
    """Route until draining. If looking after the workers breaks, so does routing: one is no use without the other."""
    reclaimer = Reclaimer(worker.bus, worker.registry)
    fleet = Fleet(worker.registry)
    cancels = Cancels(worker.bus)
    await cancels.start()
    assigner = Assigner(
        worker.bus,
        worker.wid,
        worker.config,
        worker.registry,
        fleet=fleet,
        cancels=cancels,
        draining=worker.draining,
    )
    slots = Slots(_AT_ONCE)
    worker.collect = lambda: {"active": slots.used, "slots": slots.total}
    try:
        async with asyncio.TaskGroup() as group:
            tending = [group.create_task(_follow(worker, reclaimer)), group.create_task(_sweep(worker, reclaimer))]
            await _logged(reclaimer.sweep())
            worker.update(state=State.READY)
            await worker.pull(_sources(assigner, fleet), slots)
            for task in tending:
                task.cancel()
    finally:
        await cancels.close()


def _sources(assigner: Assigner, fleet: Fleet) -> list[Source]:
    def can_place() -> bool:
        return fleet.has_room("decode")

    def can_route() -> bool:
        return fleet.has_room("decode") or fleet.has_room("prefill")

    return [
        Source(subjects.RTEQ, "place-int", assigner.handle, can_place),
        Source(subjects.RTEQ, "route-int", assigner.handle, can_route),
        Source(subjects.RTEQ, "place-bat", assigner.handle, can_place),
        Source(subjects.RTEQ, "route-bat", assigner.handle, can_route),
    ]


async def _follow(worker: Worker, reclaimer: Reclaimer) -> None:
    """Equip new workers and reclaim from gone ones as the registry changes."""
    changes: asyncio.Queue[tuple[str, WorkerReport | None]] = asyncio.Queue()
    worker.registry.on_change(lambda wid, report: changes.put_nowait((wid, report)))
    while True:
        wid, report = await changes.get()
        await _logged(reclaimer.equip(report) if report is not None else reclaimer.reclaim(stage_of(wid), wid))


async def _sweep(worker: Worker, reclaimer: Reclaimer) -> None:
    while True:
        await asyncio.sleep(worker.config.router.sweep_s)
        await _logged(reclaimer.sweep())


async def _logged(work: Awaitable[None]) -> None:
    """Await `work`; what the server refuses now is tried again by the next sweep."""
    try:
        await work
    except BusError as error:
        log.warning("tending_failed", reason=str(error))
