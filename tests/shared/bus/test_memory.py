"""The in-memory bus under a clock of its own: hours pass in no time, and a restart forgets what a real one forgets."""

import asyncio

import pytest

from headrace.shared.bus import ConsumerSpec, StreamSpec
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.bus.memory_clock import ManualClock
from headrace.shared.bus.memory_stream import matches

QUEUE = StreamSpec("Q", ("q.>",), work_queue=True, max_age_s=3600.0)


@pytest.fixture
def clock() -> ManualClock:
    """Time that moves only when told to."""
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> MemoryServer:
    """A server under that clock."""
    return MemoryServer(clock)


@pytest.fixture
async def bus(server: MemoryServer) -> MemoryBus:
    """A connection with a queue Q and its consumer c (ack_wait 10 s)."""
    bus = server.connect()
    await bus.ensure_stream(QUEUE)
    await bus.ensure_consumer(ConsumerSpec("Q", "c", "q.>", ack_wait_s=10.0, max_ack_pending=8))
    return bus


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("*.b.*", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*.>", "a.b", False),
        (">", "a", True),
        ("$KV.W.>", "$KV.W.x.y", True),
    ],
)
def test_subject_patterns(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


async def test_fetch_times_out_by_the_servers_clock(bus: MemoryBus, clock: ManualClock) -> None:
    fetching = asyncio.create_task(bus.fetch("Q", "c", batch=1, timeout_s=600.0))
    await _turns()
    clock.advance(599.0)
    await _turns()
    assert not fetching.done()

    clock.advance(1.0)

    assert await fetching == []


async def test_item_comes_again_after_its_ack_wait_to_who_waits(bus: MemoryBus, clock: ManualClock) -> None:
    await bus.publish("q.1", b"x")
    (item,) = await bus.fetch("Q", "c", batch=1, timeout_s=1.0)
    again = asyncio.create_task(bus.fetch("Q", "c", batch=1, timeout_s=100.0))
    await _turns()
    clock.advance(9.0)
    await bus.progress(item)
    clock.advance(9.0)
    await _turns()
    assert not again.done()

    clock.advance(1.0)

    assert [(each.seq, each.num_delivered) for each in await again] == [(item.seq, 2)]


async def test_items_leave_the_queue_by_age(bus: MemoryBus, clock: ManualClock) -> None:
    await bus.publish("q.1", b"x")
    clock.advance(1800.0)
    await bus.publish("q.2", b"x")
    clock.advance(1800.0)

    assert [record.subject for record in await bus.read("Q", ">")] == ["q.2"]
    assert [item.subject for item in await bus.fetch("Q", "c", batch=8, timeout_s=1.0)] == ["q.2"]


async def test_stream_times_are_the_clocks(bus: MemoryBus, clock: ManualClock) -> None:
    clock.advance(5.0)
    await bus.publish("q.1", b"x")

    (item,) = await bus.fetch("Q", "c", batch=1, timeout_s=1.0)

    assert item.time_s == clock.now()


async def test_log_with_history_keeps_short_lived_records_as_long_as_a_marker(
    bus: MemoryBus, clock: ManualClock
) -> None:
    """JetStream's rule, which makes short lives exact only where a subject keeps one value."""
    await bus.ensure_stream(StreamSpec("H", ("h.>",), allow_ttl=True, marker_ttl_s=60.0))
    await bus.publish("h.1", b"x", ttl_s=1.0)

    clock.advance(59.0)
    before = await bus.last("H", "h.1")
    clock.advance(2.0)
    after = await bus.last("H", "h.1")

    assert before is not None
    assert after is not None
    assert (before.reason, after.reason) == (None, "MaxAge")


async def test_markers_expire_without_a_trace(bus: MemoryBus, clock: ManualClock) -> None:
    await bus.ensure_stream(StreamSpec("K", ("k.>",), max_per_subject=1, allow_ttl=True, marker_ttl_s=60.0))
    await bus.publish("k.1", b"x", ttl_s=1.0)

    clock.advance(1.0)
    assert len(await bus.read("K", ">")) == 1
    clock.advance(60.0)

    assert await bus.read("K", ">") == []


async def test_restart_forgets_deliveries_and_tells_everybody(bus: MemoryBus, server: MemoryServer) -> None:
    other = server.connect()
    told: list[str] = []

    async def note() -> None:
        told.append("told")

    other.on_reconnect(note)
    await bus.publish("q.1", b"x")
    await bus.publish("q.2", b"x")
    first, second = await bus.fetch("Q", "c", batch=2, timeout_s=1.0)
    await bus.ack(first)

    await server.restart()

    items = await bus.fetch("Q", "c", batch=8, timeout_s=1.0)
    assert [(item.seq, item.num_delivered) for item in items] == [(second.seq, 1)]
    assert told == ["told"]
    await other.close()
    await server.restart()
    assert told == ["told"]


async def _turns() -> None:
    """Let every ready task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)
