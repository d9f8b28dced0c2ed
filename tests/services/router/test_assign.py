"""One routed item: it reaches a worker, or its request ends; killed or slow routers lose nothing."""

import asyncio

import pytest

from headrace.shared import runlog, subjects
from headrace.shared.errors import BusError, Code
from headrace.shared.messages import Deadlines, encode
from headrace.shared.records import CancelRecord, ChoiceChunk, FinRecord, TokRecord

LONG = 100


async def handled(router, kind="place", cls="int") -> None:
    await router.assigner.handle(await router.take(kind, cls))


async def waits(yard, router) -> None:
    """Until the item at hand waits for a worker."""
    await yard.until(router.assigner._waiting.total)


async def test_an_item_goes_to_a_worker_and_leaves_the_queue(yard):
    router = await yard.router()
    await yard.report("decode-a")
    await yard.put(yard.item())

    await handled(router)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]
    assert await yard.subjects(subjects.RTEQ) == []


@pytest.mark.parametrize(("kind", "is_read"), [("route", False), ("place", True)])
async def test_a_log_is_read_only_where_a_worker_may_have_written_it(yard, monkeypatch, kind, is_read):
    router = await yard.router()
    await yard.report("decode-a")
    await yard.put(yard.item(), kind)
    reads = []
    read = router.bus.read
    monkeypatch.setattr(
        router.bus, "read", lambda stream, *args, **kw: reads.append(stream) or read(stream, *args, **kw)
    )

    await handled(router, kind)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]
    assert (subjects.RUN in reads) is is_read


async def test_a_request_on_its_first_way_is_dropped_once_it_is_cancelled(yard):
    router = await yard.router()
    await yard.report("decode-a")
    item = yard.item()
    await yard.put(item, "route")
    rid = item.request.rid
    await runlog.cancel(yard.bus, item.request.ing, rid, CancelRecord(reason="disconnect"))
    await yard.until(lambda: rid in router.assigner._cancels)

    await handled(router, "route")

    assert await yard.subjects(subjects.DECQ) == []
    assert (await runlog.read_log(yard.bus, item.request.ing, rid)).fin.failure.code is Code.CANCELLED


async def test_a_long_prompt_goes_through_prefill_once(yard):
    router = await yard.router()
    await yard.report("prefill-a")
    await yard.report("decode-a")
    await yard.put(yard.item(LONG), "route")
    await yard.put(yard.item(LONG, cached=0), "place")

    await handled(router, "route")
    await handled(router, "place")

    assert await yard.subjects(subjects.PREQ) == ["work.pre.prefill-a"]
    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]


async def test_a_router_killed_between_publish_and_ack_places_nothing_twice(yard, broken):
    first, second = await yard.router(), await yard.router()
    await yard.report("decode-a")
    await yard.report("decode-b")
    await yard.put(yard.item())
    delivery = await first.take()
    first.assigner._bus = broken(first.bus, "ack")
    with pytest.raises(asyncio.CancelledError):
        await first.assigner.handle(delivery)

    await yard.bus.nak(delivery)
    await handled(second)

    assert len(await yard.subjects(subjects.DECQ)) == 1
    assert await yard.subjects(subjects.RTEQ) == []


async def test_a_placement_on_a_worker_that_dies_at_once_is_made_again(yard, broken):
    """Published, not acked, the worker is dead: the copy and its origin may not answer for each other."""
    first, second = await yard.router(), await yard.router()
    await yard.report("decode-a")
    await yard.put(yard.item())
    delivery = await first.take()
    first.assigner._bus = broken(first.bus, "ack")
    with pytest.raises(asyncio.CancelledError):
        await first.assigner.handle(delivery)
    await yard.gone("decode-a")
    await second.reclaimer.sweep()
    await yard.report("decode-b")
    await yard.bus.nak(delivery)
    await handled(second)
    await second.reclaimer.sweep()

    while await yard.subjects(subjects.RTEQ):
        await handled(second)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-b"]


async def test_a_placement_that_is_gone_from_its_queue_is_made_again(yard, broken):
    """The server remembers the first one by its id for a while: it must not pass for the second."""
    router = await yard.router()
    await yard.report("decode-a")
    await yard.put(yard.item())
    delivery = await router.take()
    bus, router.assigner._bus = router.bus, broken(router.bus, "ack")
    with pytest.raises(asyncio.CancelledError):
        await router.assigner.handle(delivery)
    await yard.bus.purge(subjects.DECQ, "work.dec.>")
    router.assigner._bus = bus

    await yard.bus.nak(delivery)
    await handled(router)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]


async def test_the_item_a_redelivered_one_was_made_from_is_no_placement(yard):
    """A worker handed over and its ack is still to come: its own item is on its way out and carries nothing on."""
    router = await yard.router()
    await yard.report("decode-b")
    item = yard.item(cached=0)
    await yard.bus.publish(subjects.pre("prefill-a", item.request.rid), encode(item))
    await yard.put(item)
    await yard.bus.nak(await router.take())

    await handled(router)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-b"]


async def test_an_item_waits_while_its_worker_still_holds_the_one_it_was_made_from(yard):
    """As when a stalled request comes back to the worker that handed it over."""
    router = await yard.router()
    await yard.report("decode-a")
    item = yard.item(cached=0)
    old = await yard.bus.publish(subjects.dec("decode-a", item.request.rid), encode(item))
    await yard.put(item)
    handling = asyncio.create_task(handled(router))
    await waits(yard, router)
    assert await yard.subjects(subjects.RTEQ) == ["work.place.int"]

    await yard.bus.delete(subjects.DECQ, old)
    await yard.report("decode-a", queued_tokens=1)
    await handling

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]
    assert await yard.subjects(subjects.RTEQ) == []


async def test_an_item_whose_request_has_ended_is_only_acked(yard):
    router = await yard.router()
    await yard.report("decode-a")
    item = await yard.put(yard.item())
    await runlog.end(yard.bus, item.request.ing, item.request.rid, "ingress-test", FinRecord())

    await handled(router)

    assert await yard.subjects(subjects.DECQ) == []
    assert await yard.subjects(subjects.RTEQ) == []


async def test_several_routers_place_every_item_once(yard):
    routers = [await yard.router() for _ in range(3)]
    for name in "ab":
        await yard.report(f"decode-{name}", slots=100)
    items = [await yard.put(yard.item()) for _ in range(30)]

    await asyncio.gather(*[handled(routers[n % 3]) for n in range(30)])

    placed = await yard.bus.read(subjects.DECQ, "work.>")
    assert sorted(subjects.rid_of(record.subject) for record in placed) == sorted(i.request.rid for i in items)
    assert await yard.subjects(subjects.RTEQ) == []


async def test_a_waiting_item_is_cancelled_at_once(yard):
    router = await yard.router()
    item = await yard.put(yard.item())
    handling = asyncio.create_task(handled(router))
    await waits(yard, router)
    await runlog.cancel(yard.bus, item.request.ing, item.request.rid, CancelRecord(reason="disconnect"))
    async with asyncio.timeout(5):
        await handling

    assert (await yard.log(item)).fin.failure.code is Code.CANCELLED
    assert await yard.subjects(subjects.RTEQ) == []


async def test_an_item_that_is_too_old_ends(yard):
    router = await yard.router()
    await yard.bus.publish(subjects.worker_key("router", router.wid), b"a heartbeat, for the server's time")
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
    item = await yard.put(yard.item(deadlines=deadlines, accepted_ms=1))

    await handled(router)

    assert (await yard.log(item)).fin.failure.code is Code.QUEUE_TIMEOUT


async def test_a_draining_router_gives_waiting_items_back(yard):
    router, other = await yard.router(), await yard.router()
    item = await yard.put(yard.item())
    handling = asyncio.create_task(handled(router))
    await waits(yard, router)

    router.draining.set()
    async with asyncio.timeout(5):
        await handling

    assert (await other.take()).subject == subjects.place("int", item.request.rid)
    assert (await yard.log(item)).fin is None


async def test_interactive_requests_go_before_batch_requests(yard):
    router = await yard.router()
    await yard.report("decode-a", slots=1, active=1)
    await yard.put(yard.item(cls="bat"))
    await yard.put(yard.item())
    batch = asyncio.create_task(handled(router, cls="bat"))
    interactive = asyncio.create_task(handled(router, cls="int"))
    await waits(yard, router)

    await yard.report("decode-a", slots=1, active=0)
    await interactive
    assert not batch.done()

    await yard.report("decode-a", slots=2, active=1, taken=1)
    await batch
    assert len(await yard.subjects(subjects.DECQ)) == 2


async def suspect(yard, wid="decode-gone"):
    """A request whose last holder died before it added a token."""
    item = yard.item()
    await runlog.take_lease(yard.bus, item.request.ing, item.request.rid, wid, attempt=1)
    return await yard.put(item)


async def test_a_suspect_waits_for_an_idle_worker_which_nobody_else_gets(yard):
    router = await yard.router()
    await yard.report("decode-a", slots=9, active=2)
    await yard.report("decode-b", active=1)
    await suspect(yard)
    handling = asyncio.create_task(handled(router))
    await yard.until(lambda: router.fleet._reserved)

    for _ in range(3):
        await yard.put(yard.item())
        await handled(router)
    assert set(await yard.subjects(subjects.DECQ)) == {"work.dec.decode-a"}

    await yard.report("decode-b", active=0)
    await handling
    assert (await yard.subjects(subjects.DECQ)).count("work.dec.decode-b") == 1
    assert router.fleet._reserved == {}


async def test_the_only_worker_is_never_kept_from_everybody(yard):
    router = await yard.router()
    await yard.report("decode-a", active=1)
    await suspect(yard)
    handling = asyncio.create_task(handled(router))
    await asyncio.sleep(0.05)

    await yard.put(yard.item())
    await handled(router)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]
    await yard.report("decode-a", active=0, taken=1)
    await handling


async def test_a_holder_that_made_progress_leaves_no_suspect(yard):
    router = await yard.router()
    await yard.report("decode-a", active=1)
    item = yard.item()
    lease = await runlog.take_lease(yard.bus, item.request.ing, item.request.rid, "decode-gone", attempt=1)
    await runlog.append(yard.bus, lease, TokRecord(choices=(ChoiceChunk(o=0),)))
    await yard.put(item)

    await handled(router)

    assert await yard.subjects(subjects.DECQ) == ["work.dec.decode-a"]


async def test_a_request_that_several_workers_died_on_is_ended_and_buried(yard):
    router = await yard.router()
    item = yard.item()
    await runlog.take_lease(yard.bus, item.request.ing, item.request.rid, "decode-gone", attempt=3)
    await yard.put(item)

    await handled(router)

    assert (await yard.log(item)).fin.failure.code is Code.WORKER_CRASHED
    assert len(await yard.bus.read(subjects.DLQ, "dlq.router.>")) == 1
    assert await yard.subjects(subjects.RTEQ) == []


async def test_a_worker_queue_that_is_full_is_no_success(yard, monkeypatch):
    router = await yard.router()
    await yard.report("decode-a")
    await yard.put(yard.item())
    stream = yard.server._core.stream(subjects.DECQ)
    monkeypatch.setattr(stream, "_is_over", lambda *_: True)

    with pytest.raises(BusError):
        await handled(router)
    assert await yard.subjects(subjects.RTEQ) == ["work.place.int"]
