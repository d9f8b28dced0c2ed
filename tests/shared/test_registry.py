import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.shared.bus import Bus
from headrace.shared.messages import encode
from headrace.shared.registry import Heartbeat, Registry, forget
from headrace.shared.reports import ModelReport, State, WorkerReport


class Watch:
    """Changes of a registry as a queue."""

    def __init__(self, registry: Registry) -> None:
        self.changes: asyncio.Queue[tuple[str, WorkerReport | None]] = asyncio.Queue()
        registry.on_change(lambda wid, report: self.changes.put_nowait((wid, report)))

    async def next(self) -> tuple[str, WorkerReport | None]:
        return await asyncio.wait_for(self.changes.get(), 5)


@pytest.fixture
async def registry(bus: Bus) -> AsyncIterator[Registry]:
    registry = Registry(bus)
    await registry.start()
    yield registry
    await registry.close()


def report(wid: str = "decode-1", **fields: object) -> WorkerReport:
    return WorkerReport(**{"stage": "decode", "wid": wid, "state": State.READY, **fields})


async def beat(bus: Bus, worker: WorkerReport) -> None:
    await Heartbeat(bus, lambda: worker).beat()


async def test_a_heartbeat_makes_a_worker_known(bus: Bus, registry: Registry) -> None:
    watch = Watch(registry)
    await beat(bus, report())

    assert await watch.next() == ("decode-1", report())
    assert registry.ready("decode") == [report()]


async def test_an_equal_heartbeat_is_no_change(bus: Bus, registry: Registry) -> None:
    watch = Watch(registry)
    await beat(bus, report())
    await beat(bus, report())
    await beat(bus, report(active=1))

    assert (await watch.next())[1] == report()
    assert (await watch.next())[1] == report(active=1)


async def test_a_registry_that_starts_late_knows_everyone(bus: Bus) -> None:
    await beat(bus, report("decode-1"))
    await beat(bus, report("decode-2", state=State.STARTING))
    late = Registry(bus)
    await late.start()

    assert {worker.wid for worker in late.workers()} == {"decode-1", "decode-2"}
    assert [worker.wid for worker in late.ready("decode")] == ["decode-1"]
    await late.close()


async def test_forgetting_a_worker_tells_everyone(bus: Bus, registry: Registry) -> None:
    watch = Watch(registry)
    await beat(bus, report())
    await watch.next()
    await forget(bus, "decode", "decode-1")

    assert await watch.next() == ("decode-1", None)
    await registry.refresh()
    assert registry.workers() == []


async def test_a_silent_worker_expires(bus: Bus, registry: Registry) -> None:
    watch = Watch(registry)
    await beat(bus, report())
    await watch.next()

    assert await watch.next() == ("decode-1", None)


async def test_a_worker_without_progress_sends_no_heartbeat(bus: Bus, registry: Registry) -> None:
    await Heartbeat(bus, lambda: None).beat()
    await registry.refresh()

    assert registry.workers() == []


async def test_a_stage_counts_as_seen_for_a_while_after_its_last_worker(bus: Bus) -> None:
    now = [100.0]
    registry = Registry(bus, clock=lambda: now[0])
    await registry.start()
    watch = Watch(registry)
    assert not registry.seen_within("decode", 15)
    await beat(bus, report())
    await watch.next()
    now[0] = 500.0
    await forget(bus, "decode", "decode-1")
    await watch.next()

    now[0] = 514.0
    assert registry.seen_within("decode", 15)
    now[0] = 516.0
    assert not registry.seen_within("decode", 15)
    await registry.close()


async def test_only_models_that_can_be_tokenized_and_decoded_are_served(bus: Bus, registry: Registry) -> None:
    both, alone = ModelReport(name="both"), ModelReport(name="alone")
    await beat(bus, report("tokenize-1", stage="tokenize", models=(both, alone)))
    await beat(bus, report("decode-1", models=(both,)))
    await registry.refresh()

    assert registry.models() == [both]


async def test_touch_sends_a_change_at_once(bus: Bus, registry: Registry) -> None:
    current = [report()]
    heart = Heartbeat(bus, lambda: current[0])
    watch = Watch(registry)
    beating = asyncio.create_task(heart.run())
    await watch.next()

    current[0] = report(active=5)
    started = asyncio.get_running_loop().time()
    heart.touch()
    assert (await watch.next())[1] == report(active=5)
    assert asyncio.get_running_loop().time() - started < 0.5
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


FORGED = {
    "garbage": ("decode.decode-9", b"\xc1garbage"),
    "nested": ("decode.decode-9", b"\x91" * 5000),
    "another worker's name": ("decode.decode-9", encode(WorkerReport(stage="decode", wid="decode-1"))),
    "another stage": ("router.decode-9", encode(WorkerReport(stage="decode", wid="decode-9"))),
    "a long name": ("decode." + "x" * 300, encode(WorkerReport(stage="decode", wid="x" * 300))),
    "an odd name": ("decode.A_B", encode(WorkerReport(stage="decode", wid="A_B"))),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_an_entry_that_does_not_speak_for_its_key_hurts_nobody(bus: Bus, registry: Registry, forged: str) -> None:
    watch = Watch(registry)
    key, data = FORGED[forged]
    await bus.publish(f"$KV.WORKERS.{key}", data)
    await beat(bus, report())

    assert (await watch.next())[0] == "decode-1"
    await registry.refresh()
    assert [worker.wid for worker in registry.workers()] == ["decode-1"]


async def test_a_beating_heart_can_be_stopped_at_any_moment(bus: Bus) -> None:
    for _ in range(50):
        heart = Heartbeat(bus, report)
        beating = asyncio.create_task(heart.run())
        await asyncio.sleep(0)
        heart.touch()
        beating.cancel()
        await asyncio.wait_for(asyncio.gather(beating, return_exceptions=True), 5)


async def test_news_that_come_during_a_re_read_are_not_undone(bus: Bus, registry: Registry) -> None:
    """What was read is older than what was heard meanwhile: a worker that just came must not be dropped."""
    watch = Watch(registry)
    await beat(bus, report("decode-old"))
    await watch.next()
    read = bus.read

    async def slow(*args: object, **options: object) -> object:
        records = await read(*args, **options)  # type: ignore[arg-type]
        await beat(bus, report("decode-new"))
        await beat(bus, report("decode-old", active=7))
        await watch.next()
        await watch.next()
        return records

    bus.read = slow  # type: ignore[method-assign, assignment]
    await registry.refresh()

    assert {worker.wid: worker.active for worker in registry.workers()} == {"decode-old": 7, "decode-new": 0}
    assert watch.changes.empty()


async def test_a_worker_without_progress_still_leaves_at_once(bus: Bus, registry: Registry) -> None:
    """Its engine broke: nobody should have to wait for its heartbeat to run out."""
    watch = Watch(registry)
    current: list[WorkerReport | None] = [report()]
    heart = Heartbeat(bus, lambda: current[0])
    await heart.beat()
    await watch.next()
    current[0] = None

    await heart.withdraw()
    await registry.refresh()

    assert registry.workers() == []


async def test_a_listener_that_breaks_does_not_stop_the_re_reading(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.shared.registry._REREAD_S", 0.01)
    registry = Registry(bus)
    await registry.start()
    calls: asyncio.Queue[str] = asyncio.Queue()

    def broken(wid: str, _report: WorkerReport | None) -> None:
        calls.put_nowait(wid)
        raise RuntimeError("a bug")

    registry.on_change(broken)
    assert registry._subscription is not None
    await registry._subscription.close()  # only re-reading brings news now
    await beat(bus, report("decode-1"))
    assert await asyncio.wait_for(calls.get(), 5) == "decode-1"
    await beat(bus, report("decode-2"))

    assert await asyncio.wait_for(calls.get(), 5) == "decode-2"
    await registry.close()
