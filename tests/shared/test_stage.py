"""What every stage process promises: it serves, or it ends; it is never there and useless."""

import asyncio

import pytest

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus, ConsumerSpec, Delivery
from headrace.shared.registry import Registry
from headrace.shared.reports import State
from headrace.shared.settings import load
from headrace.shared.slots import Puller, Slots
from headrace.shared.stage import Source, Worker, _run_main

SETTINGS = load(environ={})
WORKER_CONSUMERS = [streams.worker_consumer_spec(stage, "w", 1) for stage in ("prefill", "decode")]


def worker_on(bus: Bus) -> Worker:
    return Worker(SETTINGS, "tokenize", "tokenize-test", bus)


def source(handle: object) -> Source:
    return Source(subjects.TOKQ, "tok-int", handle)  # type: ignore[arg-type]


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_drained_worker_finishes_what_it_holds(bus: Bus) -> None:
    worker, slots = worker_on(bus), Slots(1)
    began, go_on, ended = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        began.set()
        await go_on.wait()
        ended.append(delivery.subject)
        await bus.ack(delivery)

    await bus.publish(subjects.tok("int", "a"), b"x")
    pulling = asyncio.create_task(worker.pull([source(handle)], slots))
    await began.wait()
    worker.draining.set()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(pulling, 5)

    assert ended == ["work.tok.int.a"]
    assert slots.used == 0


async def test_everybody_hears_of_a_drain_before_it_begins(bus: Bus) -> None:
    """What is handed over must not come straight back."""
    worker = worker_on(bus)
    worker.update(state=State.READY)
    draining = asyncio.create_task(worker.draining.wait())
    registry = Registry(bus)

    await worker.drain()
    assert not draining.done()  # nobody has acted on it yet

    await registry.refresh()
    assert [report.state for report in registry.workers()] == [State.DRAINING]
    await draining


@pytest.mark.parametrize("broken", ["_fetch", "renew"])
async def test_a_loop_that_breaks_ends_the_worker_and_what_it_holds(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    worker, slots = worker_on(bus), Slots(2)
    began, stopped = asyncio.Event(), asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        began.set()
        try:
            await forever()
        finally:
            stopped.set()

    works = getattr(Puller, broken)

    async def breaks(self: Puller, *args: object) -> object:
        if broken == "renew" or began.is_set():
            await began.wait()
            raise RuntimeError("a bug")
        return await works(self, *args)

    monkeypatch.setattr(Puller, broken, breaks)
    await bus.publish(subjects.tok("int", "a"), b"x")
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(worker.pull([source(handle)], slots), 10)

    assert stopped.is_set()
    assert (slots.used, slots.free) == (0, 2)


async def test_a_worker_whose_heart_stops_ends(bus: Bus) -> None:
    async def stops() -> None:
        raise ZeroDivisionError

    cancelled = asyncio.Event()

    async def main(_worker: Worker) -> None:
        try:
            await forever()
        finally:
            cancelled.set()

    beating = asyncio.create_task(stops())
    lost = asyncio.create_task(asyncio.Event().wait())

    assert await _run_main(worker_on(bus), main, beating, lost) == 1
    assert cancelled.is_set()


async def test_a_worker_that_lost_the_server_for_good_ends(bus: Bus) -> None:
    closed = asyncio.Event()
    closed.set()
    beating = asyncio.create_task(forever())

    async def main(_worker: Worker) -> None:
        await forever()

    assert await _run_main(worker_on(bus), main, beating, asyncio.create_task(closed.wait())) == 1
    beating.cancel()


async def test_the_error_of_a_stage_reaches_whoever_runs_it(bus: Bus) -> None:
    beating = asyncio.create_task(forever())

    async def main(_worker: Worker) -> None:
        raise LookupError("no model")

    with pytest.raises(LookupError):
        await _run_main(worker_on(bus), main, beating, asyncio.create_task(asyncio.Event().wait()))
    beating.cancel()


async def test_a_worker_without_progress_reports_nothing(bus: Bus) -> None:
    worker = worker_on(bus)
    assert worker._current() is not None

    worker.is_alive = lambda: False

    assert worker._current() is None


async def test_a_report_holds_what_changes_all_the_time(bus: Bus) -> None:
    worker = worker_on(bus)
    worker.collect = lambda: {"active": 3}
    worker.update(slots=8)

    report = worker._current()

    assert report is not None
    assert (report.active, report.slots, report.stage, report.wid) == (3, 8, "tokenize", "tokenize-test")


@pytest.mark.parametrize("spec", [*streams.CONSUMERS, *WORKER_CONSUMERS], ids=lambda spec: spec.name)
def test_ack_timers_are_renewed_three_times_before_they_run_out(spec: ConsumerSpec) -> None:
    async def handle(_delivery: Delivery) -> None:
        raise AssertionError

    assert Source(spec.stream, spec.name, handle).renew_s <= spec.ack_wait_s / 3
