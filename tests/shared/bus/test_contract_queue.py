"""Work queues: fetching, acking, redelivery; the same on every bus."""

import asyncio
import time

import pytest

from headrace.shared.bus import Bus
from headrace.shared.errors import MissingError


async def test_fetch_hands_out_items_with_their_place_in_the_stream(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    seqs = [await bus.publish(places.subject(f"r{number}"), b"%d" % number) for number in range(3)]

    items = await bus.fetch(places.stream, "c", batch=8, timeout_s=2)

    assert [(item.subject, item.data, item.seq) for item in items] == [
        (places.subject(f"r{number}"), b"%d" % number, seq) for number, seq in enumerate(seqs)
    ]
    assert {(item.stream, item.consumer, item.num_delivered) for item in items} == {(places.stream, "c", 1)}
    assert all(abs(item.time_s - time.time()) < 60 for item in items)


async def test_fetch_takes_no_more_than_asked(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    for number in range(5):
        await bus.publish(places.subject(f"r{number}"), b"x")

    batches = [await bus.fetch(places.stream, "c", batch=2, timeout_s=1) for _ in range(3)]

    assert [len(batch) for batch in batches] == [2, 2, 1]


async def test_fetch_waits_its_time_for_nothing(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    started = time.monotonic()

    assert await bus.fetch(places.stream, "c", batch=1, timeout_s=0.3) == []
    assert await bus.fetch(places.stream, "c", batch=4, timeout_s=0.3) == []

    assert 0.5 < time.monotonic() - started < 2


@pytest.mark.parametrize("batch", [1, 4])
async def test_waiting_fetch_gets_an_item_at_once(bus: Bus, places, batch: int) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    waiting = asyncio.create_task(bus.fetch(places.stream, "c", batch=batch, timeout_s=5))
    await _is_pulling(bus)
    started = time.monotonic()

    await bus.publish(places.subject("r1"), b"x")
    items = await waiting

    assert [item.data for item in items] == [b"x"]
    assert time.monotonic() - started < 1


async def test_fetch_of_a_missing_consumer_or_stream_is_an_error(bus: Bus, places) -> None:
    with pytest.raises(MissingError):
        await bus.fetch(places.stream, "c", batch=1, timeout_s=0.2)
    await places.add_stream(work_queue=True)
    with pytest.raises(MissingError, match=f"{places.stream}/c"):
        await bus.fetch(places.stream, "c", batch=1, timeout_s=0.2)


async def test_consumer_deleted_under_a_waiting_fetch(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    waiting = asyncio.create_task(bus.fetch(places.stream, "c", batch=1, timeout_s=5))
    await _is_pulling(bus)

    await bus.delete_consumer(places.stream, "c")

    with pytest.raises(MissingError):
        await waiting


async def test_ack_removes_and_frees_the_subject(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    await bus.publish(places.subject("r1"), b"x")
    (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)

    await bus.ack(item, wait=True)

    assert await bus.last(places.stream, places.subject("r1")) is None
    await bus.publish(places.subject("r1"), b"again")
    await bus.ack(item, wait=True)


@pytest.mark.parametrize("batch", [1, 4])
async def test_unacked_item_comes_again(bus: Bus, places, batch: int) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(ack_wait_s=0.5)
    await bus.publish(places.subject("r1"), b"x")
    (first,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)
    started = time.monotonic()

    (second,) = await bus.fetch(places.stream, "c", batch=batch, timeout_s=3)

    assert 0.2 < time.monotonic() - started < 2
    assert (second.seq, first.num_delivered, second.num_delivered) == (first.seq, 1, 2)


async def test_progress_holds_an_item(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(ack_wait_s=0.6)
    await bus.publish(places.subject("r1"), b"x")
    (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)

    for _ in range(3):
        assert await bus.fetch(places.stream, "c", batch=1, timeout_s=0.3) == []
        await bus.progress(item)

    assert await bus.fetch(places.stream, "c", batch=1, timeout_s=0.3) == []


@pytest.mark.parametrize("batch", [1, 4])
async def test_nak_gives_back_at_once_or_after_a_delay(bus: Bus, places, batch: int) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    await bus.publish(places.subject("r1"), b"x")
    (item,) = await bus.fetch(places.stream, "c", batch=batch, timeout_s=2)
    await bus.nak(item)
    (item,) = await bus.fetch(places.stream, "c", batch=batch, timeout_s=2)
    assert item.num_delivered == 2
    await bus.nak(item, delay_s=0.4)

    assert await bus.fetch(places.stream, "c", batch=batch, timeout_s=0.2) == []
    started = time.monotonic()
    (item,) = await bus.fetch(places.stream, "c", batch=batch, timeout_s=3)
    assert item.num_delivered == 3
    assert time.monotonic() - started < 1


async def test_term_removes_for_good(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(ack_wait_s=0.3)
    await bus.publish(places.subject("r1"), b"poison")
    (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)

    await bus.term(item, "undecodable")

    assert await bus.fetch(places.stream, "c", batch=1, timeout_s=0.6) == []
    assert await bus.last(places.stream, places.subject("r1")) is None


async def test_max_ack_pending_holds_back_until_an_ack(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(max_ack_pending=2)
    for number in range(3):
        await bus.publish(places.subject(f"r{number}"), b"x")
    held = await bus.fetch(places.stream, "c", batch=8, timeout_s=2)
    assert len(held) == 2
    waiting = asyncio.create_task(bus.fetch(places.stream, "c", batch=8, timeout_s=5))
    await _is_pulling(bus)
    started = time.monotonic()

    await bus.ack(held[0])

    (item,) = await waiting
    assert (item.subject, item.num_delivered) == (places.subject("r2"), 1)
    assert time.monotonic() - started < 1


async def test_item_at_max_deliver_is_not_delivered_again(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(ack_wait_s=0.3, max_deliver=1)
    await bus.publish(places.subject("r1"), b"x")
    assert len(await bus.fetch(places.stream, "c", batch=1, timeout_s=2)) == 1

    assert await bus.fetch(places.stream, "c", batch=1, timeout_s=0.8) == []
    assert await bus.last(places.stream, places.subject("r1")) is not None


async def test_consumers_see_their_own_subjects_only(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer("int", filter=places.subject("int", ">"))
    await places.add_consumer("bat", filter=places.subject("bat", ">"))
    await bus.publish(places.subject("bat", "r1"), b"b")
    await bus.publish(places.subject("int", "r2"), b"i")

    (interactive,) = await bus.fetch(places.stream, "int", batch=4, timeout_s=2)
    (batch,) = await bus.fetch(places.stream, "bat", batch=4, timeout_s=2)

    assert (interactive.data, batch.data) == (b"i", b"b")


async def test_many_fetchers_share_without_losing_or_doubling(connect, bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    seen: list[str] = []

    async def work(own: Bus) -> None:
        while len(seen) < 60:
            for item in await own.fetch(places.stream, "c", batch=3, timeout_s=0.5):
                seen.append(item.subject)
                await own.ack(item)

    workers = [asyncio.create_task(work(await connect())) for _ in range(4)]
    for number in range(60):
        await bus.publish(places.subject(f"r{number}"), b"x")
    async with asyncio.timeout(10):
        await asyncio.gather(*workers)

    assert sorted(seen) == sorted(places.subject(f"r{number}") for number in range(60))


async def test_cancelled_fetch_leaves_its_item_to_others(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    for round_number in range(10):
        abandoned = asyncio.create_task(bus.fetch(places.stream, "c", batch=1, timeout_s=0.5))
        await _is_pulling(bus)
        publishing = asyncio.create_task(bus.publish(places.subject(f"r{round_number}"), b"x"))
        abandoned.cancel()
        await asyncio.wait({abandoned})
        await publishing

        (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)

        assert item.subject == places.subject(f"r{round_number}")
        await bus.ack(item, wait=True)


async def test_purged_item_is_not_delivered(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer(ack_wait_s=0.3)
    await bus.publish(places.subject("r1"), b"x")
    await bus.publish(places.subject("r2"), b"x")
    (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)

    assert await bus.purge(places.stream, places.subject("*")) == 2

    assert await bus.fetch(places.stream, "c", batch=4, timeout_s=0.8) == []
    await bus.ack(item, wait=True)


async def test_items_survive_their_consumer(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer("c1")
    await bus.publish(places.subject("r1"), b"x")
    await bus.fetch(places.stream, "c1", batch=1, timeout_s=2)

    await bus.delete_consumer(places.stream, "c1")
    await places.add_consumer("c2")

    (item,) = await bus.fetch(places.stream, "c2", batch=1, timeout_s=2)
    assert (item.subject, item.num_delivered) == (places.subject("r1"), 1)


async def _is_pulling(bus: Bus) -> None:
    """A pull sent before has reached the server."""
    for _ in range(2):
        await bus.rtt()
