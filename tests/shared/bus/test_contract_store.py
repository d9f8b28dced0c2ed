"""Storing, reading back, refusing and expiring: the same on every bus."""

import pytest

from headrace.shared.bus import Bus, Expect
from headrace.shared.errors import BusError, FencedError, MissingError, QueueFullError


async def test_publish_returns_growing_sequences_and_last_reads_back(bus: Bus, places) -> None:
    await places.add_stream()

    first = await bus.publish(places.subject("a", "1"), b"one")
    second = await bus.publish(places.subject("a", "1"), b"two")

    record = await bus.last(places.stream, places.subject("a", "1"))
    assert second > first
    assert record is not None
    assert (record.subject, record.data, record.seq) == (places.subject("a", "1"), b"two", second)
    assert record.time_s > 0


async def test_last_takes_wildcards_and_is_none_for_nothing(bus: Bus, places) -> None:
    await places.add_stream()
    await bus.publish(places.subject("a", "1", "x"), b"1")
    newest = await bus.publish(places.subject("b", "1", "y"), b"2")
    await bus.publish(places.subject("b", "2", "y"), b"3")

    record = await bus.last(places.stream, places.subject("*", "1", "*"))

    assert record is not None
    assert record.seq == newest
    assert await bus.last(places.stream, places.subject("*", "9", "*")) is None


async def test_read_pages_in_order_with_wildcards(bus: Bus, places) -> None:
    await places.add_stream()
    for number in range(10):
        await bus.publish(places.subject("a", str(number % 2), "x"), b"%d" % number)

    odd = await bus.read(places.stream, places.subject("a", "1", ">"))
    page = await bus.read(places.stream, places.subject("a", "*", "x"), after=odd[0].seq, limit=3)

    assert [record.data for record in odd] == [b"1", b"3", b"5", b"7", b"9"]
    assert [record.data for record in page] == [b"2", b"3", b"4"]
    assert await bus.read(places.stream, places.subject("a", ">"), after=odd[-1].seq) == []
    assert await bus.read(places.stream, places.subject("z", ">")) == []


async def test_read_crosses_the_servers_batches(bus: Bus, places) -> None:
    await places.add_stream()
    for number in range(600):
        await bus.publish(places.subject("log"), b"%d" % number)

    records = await bus.read(places.stream, places.subject("log"), limit=590)

    assert [record.data for record in records] == [b"%d" % number for number in range(590)]


async def test_empty_records_read_back(bus: Bus, places) -> None:
    await places.add_stream()
    seq = await bus.publish(places.subject("a"), b"")

    assert [record.seq for record in await bus.read(places.stream, places.subject("a"))] == [seq]
    record = await bus.last(places.stream, places.subject("a"))
    assert record is not None
    assert (record.data, record.reason) == (b"", None)


async def test_missing_streams_are_named(bus: Bus, places) -> None:
    with pytest.raises(MissingError):
        await bus.publish(places.subject("a"), b"")
    with pytest.raises(MissingError, match=places.stream):
        await bus.last(places.stream, places.subject("a"))
    with pytest.raises(MissingError, match=places.stream):
        await bus.read(places.stream, places.subject("a"))
    with pytest.raises(MissingError, match=places.stream):
        await bus.purge(places.stream, places.subject("a"))


async def test_same_id_stores_once_and_returns_the_first_sequence(bus: Bus, places) -> None:
    await places.add_stream()

    first = await bus.publish(places.subject("a"), b"x", msg_id="id-1")
    again = await bus.publish(places.subject("a"), b"x", msg_id="id-1")

    assert again == first
    assert len(await bus.read(places.stream, places.subject("a"))) == 1


async def test_dedup_window_ends(bus: Bus, places, heard) -> None:
    await places.add_stream(
        dedup_s=0.1,
        max_per_subject=1,
        allow_ttl=True,
        marker_ttl_s=60.0,
        republish=(places.subject("clock"), f"gone{places.root}"),
    )
    await bus.subscribe(f"gone{places.root}", heard)
    first = await bus.publish(places.subject("a"), b"x", msg_id="id-1")
    await bus.publish(places.subject("clock"), b"x", ttl_s=1.0)
    await heard.wait_for(2)

    assert await bus.publish(places.subject("a"), b"x", msg_id="id-1") > first


async def test_compare_and_set_on_the_own_subject(bus: Bus, places) -> None:
    await places.add_stream()

    first = await bus.publish(places.subject("lease"), b"one", expect=Expect(0))
    with pytest.raises(FencedError):
        await bus.publish(places.subject("lease"), b"two", expect=Expect(0))
    second = await bus.publish(places.subject("lease"), b"two", expect=Expect(first))

    assert second > first
    assert [record.data for record in await bus.read(places.stream, places.subject("lease"))] == [b"one", b"two"]


async def test_an_equal_record_of_somebody_else_is_still_fenced(bus: Bus, places) -> None:
    """Reading back decides only after a try of one's own was lost."""
    await places.add_stream()
    await bus.publish(places.subject("lease"), b"same", expect=Expect(0))

    with pytest.raises(FencedError):
        await bus.publish(places.subject("lease"), b"same", expect=Expect(0))


async def test_fence_by_another_subject(bus: Bus, places) -> None:
    await places.add_stream()
    lease = places.subject("lease")
    old = await bus.publish(lease, b"w1", expect=Expect(0))
    await bus.publish(places.subject("tok"), b"t1", expect=Expect(old, lease), msg_id="r:0")
    new = await bus.publish(lease, b"w2", expect=Expect(old))

    with pytest.raises(FencedError):
        await bus.publish(places.subject("tok"), b"t2", expect=Expect(old, lease), msg_id="r:1")
    repeated = await bus.publish(places.subject("tok"), b"t1", expect=Expect(new, lease), msg_id="r:0")

    records = await bus.read(places.stream, places.subject("tok"))
    assert [record.data for record in records] == [b"t1"]
    assert repeated == records[0].seq


async def test_second_item_of_a_subject_is_a_duplicate(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await bus.publish(places.subject("int", "r1"), b"x")

    with pytest.raises(QueueFullError) as caught:
        await bus.publish(places.subject("int", "r1"), b"x")

    assert caught.value.duplicate


@pytest.mark.parametrize("limit", [{"max_msgs": 3}, {"max_bytes": 400}])
async def test_full_queue_refuses_and_recovers_after_an_ack(bus: Bus, places, limit: dict[str, int]) -> None:
    """What was acknowledged is stored, to the last message; room made by an ack is usable at once."""
    await places.add_stream(work_queue=True, **limit)
    await places.add_consumer()
    accepted: list[int] = []
    refusals: list[bool] = []
    for number in range(10):
        try:
            accepted.append(await bus.publish(places.subject(f"r{number}"), b"x" * 40, msg_id=f"m{number}"))
        except QueueFullError as refused:
            refusals.append(refused.duplicate)

    assert 2 <= len(accepted) < 10
    assert not any(refusals)
    assert await bus.publish(places.subject("r0"), b"x" * 40, msg_id="m0") == accepted[0]
    stored = await bus.read(places.stream, places.subject(">"))
    assert [record.seq for record in stored] == accepted
    (item,) = await bus.fetch(places.stream, "c", batch=1, timeout_s=2)
    await bus.ack(item, wait=True)
    assert await bus.publish(places.subject("r10"), b"x" * 40) > accepted[-1]


async def test_log_drops_its_oldest_records_when_full(bus: Bus, places) -> None:
    await places.add_stream(max_msgs=3)
    for number in range(5):
        await bus.publish(places.subject(str(number)), b"x")

    records = await bus.read(places.stream, places.subject("*"))

    assert [record.subject for record in records] == [places.subject(str(number)) for number in (2, 3, 4)]


async def test_oversize_is_refused_naming_size_and_limit_and_the_next_publish_works(bus: Bus, places) -> None:
    await places.add_stream(max_msg_bytes=1000)

    with pytest.raises(BusError, match=r"9000000.*8388608|8388608.*9000000") as caught:
        await bus.publish(places.subject("a"), b"x" * 9_000_000)
    assert not isinstance(caught.value, QueueFullError)
    with pytest.raises(BusError, match="exceeds maximum") as caught:
        await bus.publish(places.subject("a"), b"x" * 2000)
    assert not isinstance(caught.value, QueueFullError)
    with pytest.raises(BusError, match="8388608"):
        await bus.emit(places.subject("a"), b"x" * 9_000_000)
    assert await bus.publish(places.subject("a"), b"x") > 0


async def test_large_records_travel_whole(bus: Bus, places) -> None:
    await places.add_stream()
    body = bytes(range(256)) * (4 << 12)

    await bus.publish(places.subject("a"), body)

    (record,) = await bus.read(places.stream, places.subject("a"))
    assert record.data == body


async def test_delete_and_purge_by_wildcard(bus: Bus, places) -> None:
    await places.add_stream()
    seqs = [await bus.publish(places.subject(ing, rid), b"x") for ing in ("a", "b") for rid in ("1", "2")]

    assert await bus.delete(places.stream, seqs[0]) is True
    assert await bus.delete(places.stream, seqs[0]) is False
    assert await bus.purge(places.stream, places.subject("*", "2")) == 2
    assert await bus.purge(places.stream, places.subject("*", "2")) == 0
    assert [record.seq for record in await bus.read(places.stream, places.subject(">"))] == [seqs[2]]
