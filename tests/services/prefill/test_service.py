"""A prefill worker and its items: handed over once, never lost, whatever happens to the first to hold one."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from headrace.prefill.service import _Prefill
from headrace.shared import runlog, streams, subjects
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.errors import BusUnavailableError, QueueFullError
from headrace.shared.messages import Tokenized, encode
from headrace.shared.records import CancelRecord

WID = "prefill-test"


class Bench:
    """The handler of a prefill worker; the test fetches for it."""

    def __init__(self, bus, served) -> None:
        self.bus = bus
        heartbeat = SimpleNamespace(touch=lambda: None)
        worker = SimpleNamespace(bus=bus, wid=WID, heartbeat=heartbeat, is_unrouted=lambda: False)
        self.stage = _Prefill(worker, {"scripted": served})

    async def put(self, item: Tokenized):
        """The item in the worker's queue, and as the worker holds it."""
        await self.bus.publish(subjects.pre(WID, item.request.rid), encode(item))
        return await self.take()

    async def take(self):
        (delivery,) = await self.bus.fetch(subjects.PREQ, f"pre-{WID}", batch=1, timeout_s=5)
        return delivery

    async def placed(self) -> list[Tokenized]:
        records = await self.bus.read(subjects.RTEQ, "work.place.>")
        return [msgspec.msgpack.decode(record.data, type=Tokenized) for record in records]

    async def num_left(self) -> int:
        return len(await self.bus.read(subjects.PREQ, "work.pre.>"))


@pytest.fixture
async def bench(serve, store):
    bus = MemoryServer().connect()
    await streams.provision(bus)
    await bus.ensure_consumer(streams.worker_consumer_spec("prefill", WID, 4))
    bench = Bench(bus, serve(store))
    await bench.stage.cancels.start()
    yield bench
    await bench.stage.cancels.close()
    await bus.close()


async def test_a_computed_prompt_is_handed_over_and_acked(bench, prompt):
    await bench.stage.handle(await bench.put(prompt(100)))

    (item,) = await bench.placed()
    assert (item.prefilled, item.cached) == (96, 0)
    assert await bench.num_left() == 0
    assert bench.stage.queued_tokens() == 0


async def test_a_model_that_is_not_served_here_is_handed_over_too(bench, prompt):
    await bench.stage.handle(await bench.put(prompt(100, model="another")))

    (item,) = await bench.placed()
    assert item.cached == 0


async def test_a_redelivery_after_the_hand_over_makes_no_second_copy(bench, prompt):
    delivery = await bench.put(prompt(100))
    await bench.stage.handle(delivery)

    await bench.stage.handle(delivery)

    assert len(await bench.placed()) == 1


async def test_a_second_delivery_answers_when_the_first_fails(bench, prompt, monkeypatch):
    """Acking it at once would leave the request to a handler that is about to fail."""
    delivery = await bench.put(prompt(100))
    publish, fails = bench.bus.publish, asyncio.Event()

    async def flaky(subject: str, data: bytes, **options: object) -> int:
        if not fails.is_set() and subject.startswith("work.place."):
            fails.set()
            raise BusUnavailableError("no answer")
        return await publish(subject, data, **options)

    monkeypatch.setattr(bench.bus, "publish", flaky)
    first = asyncio.create_task(bench.stage.handle(delivery))
    await asyncio.sleep(0)  # the first is at work now
    second = asyncio.create_task(bench.stage.handle(delivery))

    with pytest.raises(BusUnavailableError):
        await first
    await second

    assert len(await bench.placed()) == 1
    assert await bench.num_left() == 0


async def test_a_second_delivery_is_acked_once_the_first_is_through(bench, prompt):
    delivery = await bench.put(prompt(100))

    await asyncio.gather(bench.stage.handle(delivery), bench.stage.handle(delivery))

    assert len(await bench.placed()) == 1
    assert bench.stage._held == {}


async def test_a_request_cancelled_before_it_came_is_not_computed(bench, prompt):
    item = prompt(100)
    delivery = await bench.put(item)
    await runlog.cancel(bench.bus, "i", item.request.rid, CancelRecord(reason="disconnect"))
    while item.request.rid not in bench.stage.cancels:
        await bench.placed()  # a round trip, in which the tombstone arrives

    await bench.stage.handle(delivery)

    (placed,) = await bench.placed()
    assert (placed.prefilled, placed.cached) == (0, 0)


async def test_an_item_stays_while_the_one_it_was_made_from_is_still_queued(bench, prompt):
    """A prompt that needs no computing can be through before the router has removed its own copy."""
    item = prompt(100)
    rid = item.request.rid
    await bench.bus.publish(subjects.place("int", rid), encode(item))
    (origin,) = await bench.bus.fetch(subjects.RTEQ, "place-int", batch=1, timeout_s=5)
    delivery = await bench.put(item)

    with pytest.raises(QueueFullError):
        await bench.stage.handle(delivery)
    await bench.bus.ack(origin)

    assert await bench.num_left() == 1
    await bench.stage.handle(delivery)
    assert len(await bench.placed()) == 1
    assert await bench.num_left() == 0


async def test_garbage_is_buried(bench):
    await bench.bus.publish(subjects.pre(WID, "garbage"), b"\xc1")

    await bench.stage.handle(await bench.take())

    assert await bench.num_left() == 0
    assert len(await bench.bus.read(subjects.DLQ, "dlq.prefill.garbage")) == 1
