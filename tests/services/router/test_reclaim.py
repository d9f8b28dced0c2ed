"""Items of workers that are gone: each goes back in line once, whoever looks after it and whoever dies meanwhile."""

import asyncio

import msgspec
import pytest

from headrace.shared import runlog, streams, subjects
from headrace.shared.errors import Code
from headrace.shared.messages import Tokenized, encode
from headrace.shared.records import ReqRecord


async def queued(yard) -> list[Tokenized]:
    records = await yard.bus.read(subjects.RTEQ, "work.>")
    return [msgspec.msgpack.decode(record.data, type=Tokenized) for record in records]


async def hold(yard, wid: str, num: int = 1, **fields: object) -> list[Tokenized]:
    """Items in the queue of a worker."""
    items = [yard.item(**fields) for _ in range(num)]
    subject = subjects.pre if wid.startswith("prefill") else subjects.dec
    for item in items:
        await yard.bus.publish(subject(wid, item.request.rid), encode(item))
    return items


async def test_items_of_a_dead_decode_worker_look_for_another_place(yard):
    router = await yard.router()
    items = await hold(yard, "decode-a", 3)

    await router.reclaimer.reclaim("decode", "decode-a")

    assert await queued(yard) == items
    assert await yard.subjects(subjects.RTEQ) == ["work.place.int"] * 3
    assert await yard.subjects(subjects.DECQ) == []


async def test_items_of_a_dead_prefill_worker_are_routed_again_with_the_death_counted(yard):
    router = await yard.router()
    await hold(yard, "prefill-a")

    await router.reclaimer.reclaim("prefill", "prefill-a")

    assert await yard.subjects(subjects.RTEQ) == ["work.route.int"]
    assert [item.deaths for item in await queued(yard)] == [{"prefill": 1}]
    assert await yard.subjects(subjects.PREQ) == []


async def test_a_living_worker_keeps_its_items_and_its_consumer(yard):
    router = await yard.router()
    worker = await yard.report("decode-a")
    await router.reclaimer.equip(worker)
    await hold(yard, "decode-a")

    await router.reclaimer.reclaim("decode", "decode-a")
    await router.reclaimer.sweep()

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]
    assert await yard.bus.consumers(subjects.DECQ) == ["dec-decode-a"]


async def test_several_routers_at_once_give_each_item_back_once(yard):
    routers = [await yard.router() for _ in range(3)]
    items = await hold(yard, "decode-a", 10)

    await asyncio.gather(*[router.reclaimer.sweep() for router in routers])

    assert sorted(item.request.rid for item in await queued(yard)) == sorted(item.request.rid for item in items)
    assert await yard.subjects(subjects.DECQ) == []


async def test_a_router_killed_before_it_removed_an_item_leaves_one_copy(yard, broken):
    first, second = await yard.router(), await yard.router()
    (item,) = await hold(yard, "decode-a")
    first.reclaimer._bus = broken(first.bus, "delete")
    with pytest.raises(asyncio.CancelledError):
        await first.reclaimer.reclaim("decode", "decode-a")
    # The copy is placed, run and gone before anybody looks again.
    await yard.bus.ack(await second.take())

    await second.reclaimer.sweep()

    assert await queued(yard) == []
    assert await yard.subjects(subjects.DECQ) == []
    assert item.request.rid


async def test_an_item_stays_while_the_one_it_was_made_from_is_still_queued(yard):
    """The router has published to a worker that is dead already, and its own ack is still to come."""
    router = await yard.router()
    item = await yard.put(yard.item())
    origin = await router.take()
    await yard.bus.publish(subjects.dec("decode-a", item.request.rid), encode(item))

    await router.reclaimer.sweep()
    await yard.bus.ack(origin)
    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]

    await router.reclaimer.sweep()
    assert await queued(yard) == [item]
    assert await yard.subjects(subjects.DECQ) == []


async def test_an_item_whose_worker_had_handed_over_already_is_just_removed(yard):
    """Handed over, killed before the ack."""
    router = await yard.router()
    (item,) = await hold(yard, "decode-a")
    await yard.put(item)

    await router.reclaimer.sweep()

    assert len(await queued(yard)) == 1
    assert await yard.subjects(subjects.DECQ) == []


async def test_an_item_that_cannot_be_read_is_buried_and_its_request_ended(yard):
    router = await yard.router()
    item = yard.item()
    request = item.request
    req = ReqRecord(tenant="default", protocol="chat", model="m")
    await yard.bus.publish(subjects.run(request.ing, request.rid, "req"), encode(req))
    await yard.bus.publish(subjects.dec("decode-a", request.rid), b"\xc1 nonsense")

    await router.reclaimer.sweep()
    await router.assigner.handle(await router.take())

    assert (await runlog.read_log(yard.bus, request.ing, request.rid)).fin.failure.code is Code.INTERNAL
    assert len(await yard.bus.read(subjects.DLQ, "dlq.>")) == 1
    assert await yard.subjects(subjects.DECQ) == await yard.subjects(subjects.RTEQ) == []


async def test_a_consumer_that_was_removed_by_hand_is_made_again(yard):
    router = await yard.router()
    await router.reclaimer.equip(await yard.report("decode-a"))
    await yard.bus.delete_consumer(subjects.DECQ, "dec-decode-a")

    await router.reclaimer.sweep()

    assert await yard.bus.consumers(subjects.DECQ) == ["dec-decode-a"]


async def test_consumers_of_workers_that_are_gone_are_removed(yard):
    router = await yard.router()
    await yard.bus.ensure_consumer(streams.worker_consumer_spec("prefill", "prefill-gone", 4))

    await router.reclaimer.sweep()

    assert await yard.bus.consumers(subjects.PREQ) == []


async def test_a_worker_that_comes_back_while_it_is_cleared_away_has_its_consumer(yard):
    router = await yard.router()
    worker = await yard.report("decode-a")
    await router.reclaimer.equip(worker)
    await yard.gone("decode-a")
    await hold(yard, "decode-a", 5)
    clearing = asyncio.create_task(router.reclaimer.reclaim("decode", "decode-a"))
    await asyncio.sleep(0)  # it has begun, by what it knew

    await router.reclaimer.equip(await yard.report("decode-a"))
    await clearing

    assert await yard.bus.consumers(subjects.DECQ) == ["dec-decode-a"]
    assert len(await queued(yard)) == 5
