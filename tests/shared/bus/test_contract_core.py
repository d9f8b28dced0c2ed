"""Live messages, requests, and provisioning; the same on every bus."""

import asyncio
from dataclasses import replace

import pytest

from headrace.shared.bus import Bus, ConsumerSpec, Expect, StreamSpec
from headrace.shared.errors import BusUnavailableError, FencedError, MissingError


async def test_emitted_messages_arrive_in_order_by_wildcard(connect, bus: Bus, places, heard) -> None:
    other = await connect()
    await other.subscribe(places.subject("*", "b"), heard)

    for number in range(20):
        await bus.emit(places.subject(str(number), "b"), b"%d" % number)
        await bus.emit(places.subject(str(number), "c"), b"not heard")

    records = await heard.wait_for(20)
    assert [record.data for record in records] == [b"%d" % number for number in range(20)]
    assert (records[0].subject, records[0].seq, records[0].prev) == (places.subject("0", "b"), 0, None)


async def test_stored_records_are_republished_with_their_place(connect, bus: Bus, places, heard) -> None:
    await places.add_stream(republish=(places.subject(">"), f"out{places.root}.>"))
    other = await connect()
    await other.subscribe(f"out{places.root}.a.>", heard)
    first = await bus.publish(places.subject("a", "tok"), b"1")
    await bus.publish(places.subject("a", "fin"), b"2")
    last = await bus.publish(places.subject("a", "tok"), b"3")

    records = await heard.wait_for(3)

    assert [(record.subject, record.prev) for record in records] == [
        (f"out{places.root}.a.tok", 0),
        (f"out{places.root}.a.fin", 0),
        (f"out{places.root}.a.tok", first),
    ]
    assert (records[0].seq, records[2].seq) == (first, last)


async def test_refused_records_are_not_republished(bus: Bus, places, heard) -> None:
    await places.add_stream(republish=(places.subject(">"), f"out{places.root}.>"))
    await bus.subscribe(f"out{places.root}.>", heard)
    await bus.publish(places.subject("tok"), b"1", msg_id="1")
    await bus.publish(places.subject("tok"), b"1", msg_id="1")
    with pytest.raises(FencedError):
        await bus.publish(places.subject("tok"), b"stale", expect=Expect(7))
    await bus.publish(places.subject("tok"), b"2")

    records = await heard.wait_for(2)

    assert [record.data for record in records] == [b"1", b"2"]


async def test_failing_handler_keeps_its_subscription(bus: Bus, places, heard) -> None:
    async def handler(record) -> None:
        await heard(record)
        if record.data == b"bad":
            raise ValueError("handler bug")
        if record.data == b"cancelled":
            raise asyncio.CancelledError

    await bus.subscribe(places.subject("x"), handler)
    for data in (b"bad", b"cancelled", b"good"):
        await bus.emit(places.subject("x"), data)

    assert [record.data for record in await heard.wait_for(3)] == [b"bad", b"cancelled", b"good"]


async def test_closed_subscription_hears_nothing_and_finishes_what_it_handles(bus: Bus, places, heard) -> None:
    finished = asyncio.Event()

    async def handler(record) -> None:
        await subscription.close()
        await bus.rtt()
        finished.set()

    subscription = await bus.subscribe(places.subject("x"), handler)
    await bus.subscribe(places.subject("x"), heard)
    await bus.emit(places.subject("x"), b"1")
    async with asyncio.timeout(5):
        await finished.wait()
    finished.clear()

    await bus.emit(places.subject("x"), b"2")
    await heard.wait_for(2)
    await bus.rtt()

    assert not finished.is_set()
    await subscription.close()


async def test_request_is_answered(connect, bus: Bus, places) -> None:
    async def responder(data: bytes) -> bytes:
        return data.upper()

    await (await connect()).respond(places.subject("rpc"), responder)

    assert await bus.request(places.subject("rpc"), b"hello", timeout_s=2) == b"HELLO"


async def test_request_without_responder_fails_at_once(bus: Bus, places) -> None:
    async with asyncio.timeout(1):
        with pytest.raises(MissingError):
            await bus.request(places.subject("rpc"), b"", timeout_s=30)


async def test_unanswered_request_times_out(bus: Bus, places) -> None:
    async def responder(data: bytes) -> bytes:
        raise ValueError("responder bug")

    await bus.respond(places.subject("rpc"), responder)

    with pytest.raises(BusUnavailableError):
        await bus.request(places.subject("rpc"), b"", timeout_s=0.2)


async def test_queue_group_answers_each_request_once(connect, bus: Bus, places) -> None:
    asked: list[int] = []

    def responder(number: int):
        async def answer(data: bytes) -> bytes:
            asked.append(number)
            return b"%d" % number

        return answer

    for number in range(3):
        await (await connect()).respond(places.subject("rpc"), responder(number), queue="workers")

    for _ in range(30):
        await bus.request(places.subject("rpc"), b"", timeout_s=2)

    assert len(asked) == 30
    assert len(set(asked)) > 1


async def test_slow_request_does_not_hold_up_others(bus: Bus, places) -> None:
    release = asyncio.Event()

    async def responder(data: bytes) -> bytes:
        if data == b"slow":
            await release.wait()
        return data

    await bus.respond(places.subject("rpc"), responder)
    slow = asyncio.create_task(bus.request(places.subject("rpc"), b"slow", timeout_s=5))
    await bus.rtt()

    assert await bus.request(places.subject("rpc"), b"fast", timeout_s=2) == b"fast"
    release.set()
    assert await slow == b"slow"


async def test_drift_of_a_stream_is_readable(bus: Bus, places) -> None:
    spec = StreamSpec(
        places.stream,
        (places.subject("a", ">"), places.subject("b", ">")),
        max_msgs=10,
        max_bytes=1 << 20,
        max_age_s=60.0,
        max_msg_bytes=1000,
        max_per_subject=2,
        republish=(places.subject("a", ">"), f"out{places.root}.>"),
        allow_ttl=True,
        marker_ttl_s=30.0,
        dedup_s=10.0,
    )
    assert await bus.check_stream(spec) == [f"stream {places.stream}: missing"]
    assert await bus.ensure_stream(spec) == []
    assert await bus.ensure_stream(spec) == []
    assert await bus.check_stream(spec) == []

    wanted = replace(spec, max_age_s=1800.0, max_bytes=2 << 20, work_queue=True, max_per_subject=0)

    expected = [
        f"stream {places.stream}: work_queue is False, expected True",
        f"stream {places.stream}: max_bytes is 1048576, expected 2097152",
        f"stream {places.stream}: max_age_s is 60, expected 1800",
        f"stream {places.stream}: max_per_subject is 2, expected 1",
    ]
    assert await bus.ensure_stream(wanted) == expected
    assert await bus.check_stream(wanted) == expected


async def test_drift_of_a_consumer_is_readable_and_not_repaired_silently(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    spec = ConsumerSpec(places.stream, "c", places.subject(">"), ack_wait_s=5.0, max_ack_pending=8)
    assert await bus.ensure_consumer(spec) == []

    lines = await bus.ensure_consumer(replace(spec, ack_wait_s=10.0, max_waiting=8))

    assert lines == [
        f"consumer {places.stream}/c: ack_wait_s is 5, expected 10",
        f"consumer {places.stream}/c: max_waiting is 512, expected 8",
    ]
    assert await bus.ensure_consumer(spec) == []


async def test_consumers_are_listed_and_deleted(bus: Bus, places) -> None:
    assert await bus.consumer_exists(places.stream, "c1") is False
    with pytest.raises(MissingError):
        await bus.ensure_consumer(ConsumerSpec(places.stream, "c1", ">", ack_wait_s=5.0, max_ack_pending=8))
    await places.add_stream(work_queue=True)
    for name in ("c1", "c2"):
        await places.add_consumer(name, filter=places.subject(name, ">"))

    assert sorted(await bus.consumers(places.stream)) == ["c1", "c2"]
    assert await bus.consumer_exists(places.stream, "c1") is True
    await bus.delete_consumer(places.stream, "c1")
    await bus.delete_consumer(places.stream, "c1")
    assert await bus.consumers(places.stream) == ["c2"]


async def test_closed_bus_refuses_and_ends_waiting_fetches(bus: Bus, places) -> None:
    await places.add_stream(work_queue=True)
    await places.add_consumer()
    waiting = asyncio.create_task(bus.fetch(places.stream, "c", batch=1, timeout_s=30))
    for _ in range(2):
        await bus.rtt()

    await bus.close()
    await bus.close()

    async with asyncio.timeout(2):
        assert await waiting == []
    with pytest.raises(BusUnavailableError):
        await bus.publish(places.subject("a"), b"x")
    with pytest.raises(BusUnavailableError):
        await bus.fetch(places.stream, "c", batch=1, timeout_s=1)
    with pytest.raises(BusUnavailableError):
        await bus.subscribe(places.subject("a"), lambda record: asyncio.sleep(0))
