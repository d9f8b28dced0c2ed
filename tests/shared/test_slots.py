import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.shared import subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.errors import BusUnavailableError
from headrace.shared.slots import Puller, Slots


async def put(bus: Bus, *rids: str) -> None:
    for rid in rids:
        await bus.publish(subjects.tok("int", rid), rid.encode())


async def stopped(puller: Puller, stop: asyncio.Event, pulling: "asyncio.Task[None]") -> None:
    stop.set()
    await asyncio.wait_for(pulling, 5)
    await asyncio.wait_for(puller.settle(), 5)


def pulled(bus: Bus, slots: Slots, handle: Callable[[Delivery], Awaitable[None]], **options: object) -> tuple:
    stop = asyncio.Event()
    puller = Puller(bus, slots, stop, is_alive=options.pop("is_alive", lambda: True))
    return puller, stop, asyncio.create_task(puller.run(subjects.TOKQ, "tok-int", handle, **options))


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
    renewed = asyncio.Event()

    class Spy:
        async def progress(self, _delivery: Delivery) -> None:
            renewed.set()

        def __getattr__(self, name: str) -> object:
            return getattr(bus, name)

    began = asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        began.set()
        await asyncio.sleep(2)

    await put(bus, "a")
    puller, stop, pulling = pulled(Spy(), Slots(1), handle, renew_s=0.2, is_alive=lambda: alive)  # type: ignore[arg-type]
    renewing = asyncio.create_task(puller.renew())
    await began.wait()
    if alive:
        await asyncio.wait_for(renewed.wait(), 5)
    else:
        await asyncio.wait_for(puller.settle(), 5)
        assert not renewed.is_set()
    renewing.cancel()
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
