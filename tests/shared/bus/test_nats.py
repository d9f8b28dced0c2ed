"""What only a real server, or the loss of one, can show."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.shared.bus import ConsumerSpec, Expect, StreamSpec
from headrace.shared.bus.nats import NatsBus, connect
from headrace.shared.errors import BusError, BusUnavailableError, FencedError, MissingError, QueueFullError

pytestmark = pytest.mark.live

QUEUE = StreamSpec("Q", ("q.>",), work_queue=True)
CONSUMER = ConsumerSpec("Q", "c", "q.>", ack_wait_s=30.0, max_ack_pending=10)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[NatsBus]:
    """A connection to a server with one queue."""
    bus = await connect(url, name="test", timeout_s=5)
    await bus.ensure_stream(QUEUE)
    await bus.ensure_consumer(CONSUMER)
    try:
        yield bus
    finally:
        await bus.close()


async def test_waiting_fetch_survives_a_killed_server(start_nats: Callable) -> None:
    server = start_nats()
    async with opened(server.url) as bus, opened(server.url) as other:
        waiting = asyncio.create_task(bus.fetch("Q", "c", batch=1, timeout_s=20))
        await bus.rtt()

        server.stop()
        await asyncio.to_thread(server.start)
        started = time.monotonic()
        await other.publish("q.r1", b"x")
        (item,) = await waiting

        assert item.data == b"x"
        assert time.monotonic() - started < 2


async def test_publish_outlasts_a_restart_and_stores_once(start_nats: Callable) -> None:
    server = start_nats()
    async with opened(server.url) as bus:
        publishes = [asyncio.create_task(bus.publish(f"q.r{n}", b"x", msg_id=f"m{n}")) for n in range(50)]
        await asyncio.sleep(0)
        server.stop()
        publishes += [asyncio.create_task(bus.publish(f"q.s{n}", b"x", msg_id=f"n{n}")) for n in range(50)]
        await asyncio.to_thread(server.start)

        seqs = await asyncio.gather(*publishes)

        stored = await bus.read("Q", "q.>")
        assert sorted(record.seq for record in stored) == sorted(seqs)


async def test_subscriptions_and_callbacks_come_back_with_the_server(start_nats: Callable, heard) -> None:
    server = start_nats()
    reconnected = asyncio.Event()

    async def failing() -> None:
        raise ValueError("callback bug")

    async def note() -> None:
        reconnected.set()

    async with opened(server.url) as bus:
        await bus.subscribe("live.*", heard)
        bus.on_reconnect(failing)
        bus.on_reconnect(note)
        server.stop()
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(5):
            await reconnected.wait()

        await bus.emit("live.1", b"after")

        assert [record.data for record in await heard.wait_for(1)] == [b"after"]
        assert not bus.closed.is_set()


async def test_operations_fail_with_their_deadline_while_the_server_is_away(start_nats: Callable) -> None:
    server = start_nats()
    async with opened(server.url) as bus:
        server.stop()
        started = time.monotonic()

        with pytest.raises(BusUnavailableError):
            await bus.publish("q.r1", b"x", deadline_s=0.5)
        with pytest.raises(BusUnavailableError):
            await bus.request("rpc", b"", timeout_s=0.3)
        with pytest.raises(BusUnavailableError):
            await bus.rtt()
        assert await bus.fetch("Q", "c", batch=1, timeout_s=0.3) == []

        assert time.monotonic() - started < 4


async def test_item_for_an_ended_fetch_is_given_back_at_once(nats_server_bus: NatsBus) -> None:
    bus = nats_server_bus
    assert await bus.fetch("Q", "c", batch=1, timeout_s=0.1) == []
    inbox = f"{bus._link.inbox}.p1.99"
    await bus._link.send("$JS.API.CONSUMER.MSG.NEXT.Q.c", b'{"batch":1,"expires":2000000000}', reply=inbox)
    await bus.rtt()

    await bus.publish("q.r1", b"x")
    await bus.rtt()
    (item,) = await bus.fetch("Q", "c", batch=1, timeout_s=2)

    assert (item.subject, item.num_delivered) == ("q.r1", 2)


async def test_cancelled_fetches_leave_no_pull_and_no_subscription(nats_server_bus: NatsBus) -> None:
    bus = nats_server_bus
    for _ in range(5):
        fetching = asyncio.create_task(bus.fetch("Q", "c", batch=4, timeout_s=30))
        await bus.rtt()
        fetching.cancel()
        await asyncio.wait({fetching})
        assert fetching.cancelled()
    await bus.rtt()
    await bus.rtt()

    await bus.publish("q.r1", b"x")
    (item,) = await bus.fetch("Q", "c", batch=1, timeout_s=2)

    assert item.num_delivered == 1
    assert len(bus._link.client._subs) == 2


@pytest.mark.parametrize("subject", ["q.a b", "q.a\r\nPUB q.b 1\r\nx", "q..a", "q.", ".q", "", "q." + "x" * 5000])
async def test_a_malformed_subject_is_refused_here_and_costs_no_connection(
    nats_server_bus: NatsBus, subject: str
) -> None:
    for verb in (nats_server_bus.publish(subject, b""), nats_server_bus.emit(subject, b"")):
        with pytest.raises(BusError):
            await verb

    await nats_server_bus.publish("q.fine", b"")
    assert not nats_server_bus.closed.is_set()


async def test_idle_and_refused_fetch_loops_stay_cool(nats_server_bus: NatsBus) -> None:
    bus = nats_server_bus

    async def num_sent(consumer: str, seconds: float) -> int:
        before, end = bus._link.client.stats["out_msgs"], time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                assert await bus.fetch("Q", consumer, batch=8, timeout_s=0.5) == []
            except MissingError:
                continue
        return int(bus._link.client.stats["out_msgs"] - before)

    assert await num_sent("c", 1.5) <= 6
    assert await num_sent("gone", 2.0) <= 20
    assert bus._consumption._refusals.keys() == {("Q", "gone")}


async def test_more_waiting_fetches_than_allowed_wait_their_turn(nats_server_bus: NatsBus) -> None:
    bus = nats_server_bus
    await bus.ensure_stream(StreamSpec("W", ("w.>",), work_queue=True))
    await bus.ensure_consumer(ConsumerSpec("W", "c", "w.>", ack_wait_s=30.0, max_ack_pending=10, max_waiting=1))
    fetching = [asyncio.create_task(bus.fetch("W", "c", batch=1, timeout_s=10)) for _ in range(3)]
    await bus.rtt()

    for number in range(3):
        await bus.publish(f"w.r{number}", b"x")
    items = await asyncio.gather(*fetching)

    assert sorted(item.subject for (item,) in items) == ["w.r0", "w.r1", "w.r2"]


async def test_compare_and_set_whose_answer_was_lost_is_recognised(proxy: "_LossyProxy") -> None:
    async with opened(proxy.url) as bus:
        await bus.ensure_stream(StreamSpec("L", ("l.>",)))
        proxy.lose_next_answer()

        seq = await bus.publish("l.lease", b"mine", expect=Expect(0))

        assert proxy.num_lost == 1
        assert [(record.seq, record.data) for record in await bus.read("L", "l.>")] == [(seq, b"mine")]


async def test_fenced_append_whose_answer_was_lost_is_stored_once(proxy: "_LossyProxy") -> None:
    async with opened(proxy.url) as bus:
        await bus.ensure_stream(StreamSpec("L", ("l.>",)))
        lease = await bus.publish("l.lease", b"mine")
        proxy.lose_next_answer()

        seq = await bus.publish("l.tok", b"chunk", expect=Expect(lease, "l.lease"))

        assert proxy.num_lost == 1
        assert [(record.seq, record.data) for record in await bus.read("L", "l.tok")] == [(seq, b"chunk")]


@pytest.mark.parametrize("err_code", [10167, 10008])
async def test_momentary_refusals_are_retried_until_the_deadline(nats_server_bus: NatsBus, err_code: int) -> None:
    """A responder stands in for the stream: a healthy server cannot be made to refuse at will."""
    bus = nats_server_bus
    answers = [b'{"error":{"err_code":%d,"description":"busy"}}' % err_code] * 2 + [b'{"stream":"X","seq":7}']

    async def stream(data: bytes) -> bytes:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    await bus.respond("fake.recovers", stream)
    assert await bus.publish("fake.recovers", b"x") == 7
    answers[:] = [b'{"error":{"err_code":%d,"description":"busy"}}' % err_code]
    with pytest.raises(BusError, match="busy"):
        await bus.publish("fake.recovers", b"x", deadline_s=0.2)


@pytest.mark.parametrize(
    ("err_code", "description", "expected"),
    [
        (10164, "wrong last sequence", FencedError),
        (10023, "insufficient resources", QueueFullError),
        (10077, "maximum bytes exceeded", QueueFullError),
        (10059, "stream not found", MissingError),
        (10054, "message size exceeds maximum allowed", BusError),
    ],
)
async def test_refusals_mean_the_same_whatever_server_state_caused_them(
    nats_server_bus: NatsBus, err_code: int, description: str, expected: type[BusError]
) -> None:
    async def stream(data: bytes) -> bytes:
        return b'{"error":{"err_code":%d,"description":"%s"},"stream":"X"}' % (err_code, description.encode())

    await nats_server_bus.respond("fake.refuses", stream)

    with pytest.raises(expected, match=description) as caught:
        await nats_server_bus.publish("fake.refuses", b"x")
    assert type(caught.value) is expected


async def test_reservation_beyond_the_disk_budget_is_refused(nats_server_bus: NatsBus) -> None:
    with pytest.raises(QueueFullError, match="10047"):
        await nats_server_bus.ensure_stream(StreamSpec("BIG", ("big.>",), max_bytes=1 << 40))


async def test_unanswered_pings_do_not_harm_the_connection(start_nats: Callable) -> None:
    server = start_nats()
    async with opened(server.url) as bus:
        server.freeze()
        try:
            with pytest.raises(BusUnavailableError):
                await bus.rtt()
        finally:
            server.thaw()

        assert await bus.rtt() < 2
        assert await bus.publish("q.r1", b"x") == 1


async def test_unsent_bytes_do_not_delay_leaving_a_silent_server(start_nats: Callable) -> None:
    server = start_nats()
    async with opened(server.url) as bus:
        server.freeze()
        try:
            asking = asyncio.create_task(bus.request("rpc", b"", timeout_s=30))
            await bus.emit("x", b"x" * 8_000_000)

            await bus._link.client.force_reconnect()

            async with asyncio.timeout(3):
                with pytest.raises(BusUnavailableError):
                    await asking
        finally:
            server.thaw()
        assert await bus.publish("q.r1", b"x") == 1


@pytest.fixture
async def nats_server_bus(start_nats: Callable) -> AsyncIterator[NatsBus]:
    """A bus on a server of its own, with queue Q and consumer c."""
    async with opened(start_nats().url) as bus:
        yield bus


class _LossyProxy:
    """Between client and server: loses one answer, then breaks the connection, as a network would."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("nats://").split(":")
        self._target = (host, int(port))
        self._is_losing = False
        self.num_lost = 0
        self.url = ""

    def lose_next_answer(self) -> None:
        """The next bytes from the server do not arrive."""
        self._is_losing = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection."""
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        pumps = {
            asyncio.ensure_future(self._pump(reader, up_writer)),
            asyncio.ensure_future(self._pump_lossy(up_reader, writer)),
        }
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        up_writer.close()
        await up_writer.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def _pump_lossy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._is_losing:
                self._is_losing = False
                self.num_lost += 1
                return
            writer.write(data)


@pytest.fixture
async def proxy(start_nats: Callable, listening: Callable) -> AsyncIterator[_LossyProxy]:
    """A proxy before a server of its own."""
    proxy = _LossyProxy(start_nats().url)
    async with listening(proxy.serve) as proxy.url:
        yield proxy
