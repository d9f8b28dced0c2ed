import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from headrace.shared import slots as slots_module
from headrace.shared import subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.deadletters import answer_failure
from headrace.shared.errors import BusUnavailableError
from headrace.shared.slots import Puller, Slots

WID = "tokenize-test"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the fetch under way."""
    monkeypatch.setattr(slots_module, "_FETCH_S", 0.1)
    monkeypatch.setattr(slots_module, "_TICK_S", 0.01)


async def put(bus: Bus, *rids: str) -> None:
    for rid in rids:
        await bus.publish(subjects.tok("int", rid), rid.encode())


async def stopped(puller: Puller, stop: asyncio.Event, pulling: "asyncio.Task[None]") -> None:
    stop.set()
    await asyncio.wait_for(pulling, 5)
    await asyncio.wait_for(puller.settle(), 5)


def pulled(bus: Bus, slots: Slots, handle: Callable[[Delivery], Awaitable[None]], **options: object) -> tuple:
    stop = asyncio.Event()
    puller = Puller(
        bus, slots, stop, on_failure=partial(answer_failure, bus, WID), is_alive=options.pop("is_alive", lambda: True)
    )
    return (
        puller,
        stop,
        asyncio.create_task(puller.run(subjects.TOKQ, "tok-int", handle, **{"renew_s": 1.0, **options})),
    )


async def test_no_more_items_are_held_than_there_are_slots(bus: Bus) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()
    slots = Slots(2)

    async def handle(delivery: Delivery) -> None:
        started.put_nowait(subjects.rid_of(delivery.subject))
        await go_on.wait()
        await bus.ack(delivery)

    await put(bus, "a", "b", "c")
    parts = pulled(bus, slots, handle)
    assert {await started.get(), await started.get()} == {"a", "b"}
    assert slots.used == 2
    for _ in range(20):
        await asyncio.sleep(0)
    assert started.empty()

    go_on.set()
    assert await asyncio.wait_for(started.get(), 5) == "c"
    await stopped(*parts)
    assert slots.used == 0
    assert slots.free == 2


async def test_a_slot_comes_back_after_a_failed_item(bus: Bus) -> None:
    tries = 0
    slots = Slots(1)
    done = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise BusUnavailableError("away")
        await bus.ack(delivery)
        done.set()

    await put(bus, "a", "b", "c", "d")
    parts = pulled(bus, slots, handle)
    await asyncio.wait_for(done.wait(), 5)
    await stopped(*parts)
    assert slots.free == 1


async def test_stopping_lets_started_items_end(bus: Bus) -> None:
    go_on, began = asyncio.Event(), asyncio.Event()
    ended = []

    async def handle(delivery: Delivery) -> None:
        began.set()
        await go_on.wait()
        ended.append(delivery.subject)

    await put(bus, "a")
    puller, stop, pulling = pulled(bus, Slots(4), handle)
    await began.wait()
    stop.set()
    await asyncio.wait_for(pulling, 5)
    settling = asyncio.create_task(puller.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    go_on.set()
    await asyncio.wait_for(settling, 5)
    assert ended == ["work.tok.int.a"]


@pytest.mark.parametrize("alive", [True, False])
async def test_only_a_worker_that_makes_progress_keeps_its_items(bus: Bus, alive: bool) -> None:
    renewed, looked = asyncio.Event(), asyncio.Queue[None]()

    class Spy:
        async def progress(self, _delivery: Delivery) -> None:
            renewed.set()

        def __getattr__(self, name: str) -> object:
            return getattr(bus, name)

    def is_alive() -> bool:
        looked.put_nowait(None)
        return alive

    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        began.set()
        await go_on.wait()

    await put(bus, "a")
    puller, stop, pulling = pulled(Spy(), Slots(1), handle, renew_s=0.02, is_alive=is_alive)  # type: ignore[arg-type]
    renewing = asyncio.create_task(puller.renew())
    await began.wait()
    if alive:
        await asyncio.wait_for(renewed.wait(), 5)
    else:
        for _ in range(20):
            await asyncio.wait_for(looked.get(), 5)
        assert not renewed.is_set()
    renewing.cancel()
    go_on.set()
    await stopped(puller, stop, pulling)


async def test_a_disabled_source_is_left_alone_until_it_is_enabled(bus: Bus) -> None:
    enabled = False
    seen = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await bus.ack(delivery)
        seen.set()

    await put(bus, "a")
    parts = pulled(bus, Slots(1), handle, enabled=lambda: enabled)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(seen.wait(), 0.3)
    enabled = True
    await asyncio.wait_for(seen.wait(), 5)
    await stopped(*parts)


async def test_a_handler_that_breaks_is_answered_for_and_gives_its_slot_back(bus: Bus) -> None:
    answered: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    stop, slots = asyncio.Event(), Slots(1)

    async def on_failure(delivery: Delivery, error: Exception) -> None:
        answered.put_nowait((delivery.subject, type(error).__name__))

    async def handle(_delivery: Delivery) -> None:
        raise KeyError("a bug")

    await put(bus, "a", "b")
    puller = Puller(bus, slots, stop, on_failure=on_failure)
    pulling = asyncio.create_task(puller.run(subjects.TOKQ, "tok-int", handle, renew_s=1.0))
    seen = [await asyncio.wait_for(answered.get(), 5) for _ in range(2)]
    await stopped(puller, stop, pulling)

    assert seen == [("work.tok.int.a", "KeyError"), ("work.tok.int.b", "KeyError")]
    assert (slots.used, slots.free) == (0, 1)


async def test_nothing_is_fetched_once_stopped(bus: Bus) -> None:
    """A place that becomes free at the very moment of stopping fetches nothing more."""
    handled = []
    go_on, began = asyncio.Event(), asyncio.Event()
    slots = Slots(1)

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.subject)
        began.set()
        await go_on.wait()
        await bus.ack(delivery)

    await put(bus, "a", "b")
    puller, stop, pulling = pulled(bus, slots, handle)
    await began.wait()
    go_on.set()
    stop.set()
    await stopped(puller, stop, pulling)

    assert handled == ["work.tok.int.a"]
    assert slots.free == 1


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_loop_cancelled_at_any_moment_leaves_no_slot_taken(bus: Bus, num_turns: int) -> None:
    async def handle(delivery: Delivery) -> None:
        await bus.ack(delivery)

    slots = Slots(2)
    await put(bus, "a")
    puller, _, pulling = pulled(bus, slots, handle)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await puller.abandon()

    assert (slots.used, slots.free) == (0, 2)


async def test_abandoned_items_are_stopped_where_they_are(bus: Bus) -> None:
    began = asyncio.Event()
    slots = Slots(1)

    async def handle(_delivery: Delivery) -> None:
        began.set()
        await asyncio.Event().wait()

    await put(bus, "a")
    puller, stop, pulling = pulled(bus, slots, handle)
    await began.wait()
    await puller.abandon()

    assert slots.used == 0
    assert await bus.last(subjects.TOKQ, "work.tok.>") is not None
    await stopped(puller, stop, pulling)
