"""In order and without gaps, whatever the live side does: the log is the truth."""

import asyncio

import msgspec
import pytest
import structlog

from headrace.ingress.feed import MAX_BUFFERED, Feed
from headrace.shared import streams, subjects
from headrace.shared.bus import Record
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.errors import BusUnavailableError, Code, Failure
from headrace.shared.messages import encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import ChoiceChunk, ChoiceEnd, FinRecord, LeaseRecord, TextEvent, TokRecord


class Log:
    """The run log of one request, written here, with what would have been republished kept for the test to deliver."""

    def __init__(self, bus):
        self.bus = bus
        self.live = []
        self.offset = 0
        self._last = {}

    async def write(self, kind, record):
        data = encode(record)
        seq = await self.bus.publish(subjects.run("ing", "r", kind), data)
        self.live.append(Record(f"out.ing.r.{kind}", data, seq, prev=self._last.get(kind, 0)))
        self._last[kind] = seq

    async def tok(self, text="x", offset=None):
        chunk = ChoiceChunk(o=self.offset if offset is None else offset, t=pack_ids([1]), ev=(TextEvent(text),))
        self.offset += 1
        await self.write("tok", TokRecord(choices=(chunk,)))

    async def fin(self, num=None, failure=None):
        end = ChoiceEnd(n=self.offset if num is None else num, cause="eos")
        await self.write("fin", FinRecord(choices=(end,), failure=failure))


@pytest.fixture
async def bus():
    bus = MemoryServer().connect()
    await streams.provision(bus)
    yield bus
    await bus.close()


@pytest.fixture
async def log(bus):
    return Log(bus)


@pytest.fixture
async def feed():
    return Feed("ing", "r", silence_s=0.05)


def drain(feed):
    """Texts and `fin`s taken so far."""
    out = []
    while (item := feed.pop()) is not None:
        if isinstance(item, TokRecord):
            out.append(item.choices[0].ev[0].s)
        else:
            out.append(item.failure.code if item.failure else "fin")
    return out


async def test_live_records_arrive_in_order(feed, log):
    for text in "abc":
        await log.tok(text)
    await log.fin()
    for record in log.live:
        feed.offer(record)

    assert drain(feed) == ["a", "b", "c", "fin"]
    assert feed.is_ended


async def test_repeated_and_late_records_are_dropped(feed, log):
    for text in "abc":
        await log.tok(text)
    for record in [log.live[0], log.live[0], log.live[1], log.live[0], log.live[2], log.live[1]]:
        feed.offer(record)

    assert drain(feed) == ["a", "b", "c"]


async def test_a_lost_record_makes_the_feed_read_the_log(feed, log, bus):
    for text in "abcd":
        await log.tok(text)
    feed.offer(log.live[0])
    feed.offer(log.live[2])

    assert drain(feed) == ["a"]
    await asyncio.wait_for(feed.wait(feed_time() + 5), 1)
    await feed.replay(bus)
    feed.offer(log.live[3])

    assert drain(feed) == ["b", "c", "d"]


async def test_a_lost_tail_is_noticed_by_the_count_in_fin(feed, log, bus):
    for text in "abc":
        await log.tok(text)
    await log.fin()
    feed.offer(log.live[0])
    feed.offer(log.live[-1])

    assert not feed.is_ended
    await feed.replay(bus)

    assert drain(feed) == ["a", "b", "c", "fin"]


async def test_silence_is_checked_against_the_log(feed, log, bus):
    feed.listen()
    await log.tok("a")
    await log.fin()

    await asyncio.wait_for(feed.wait(feed.check_at), 2)
    assert feed_time() >= feed.check_at - 0.002
    await feed.replay(bus)

    assert drain(feed) == ["a", "fin"]


async def test_records_that_arrive_during_a_replay_are_neither_lost_nor_doubled(feed, log, bus):
    for text in "abcd":
        await log.tok(text)
    replaying = asyncio.create_task(feed.replay(bus))
    await asyncio.sleep(0)
    for record in log.live:
        feed.offer(record)
    await log.tok("e")
    feed.offer(log.live[-1])
    await replaying

    assert drain(feed) == ["a", "b", "c", "d", "e"]


async def test_a_slow_consumer_costs_no_memory_and_no_record(feed, log, bus):
    num = MAX_BUFFERED * 2 + 50
    for index in range(num):
        await log.tok(str(index))
    await log.fin()
    for record in log.live:
        feed.offer(record)

    out = drain(feed)
    assert len(out) == MAX_BUFFERED
    while not feed.is_ended:
        assert feed.check_at <= feed_time()
        await feed.replay(bus)
        out += drain(feed)
    assert out == [*map(str, range(num)), "fin"]


async def test_an_offset_that_was_taken_already_is_dropped(feed, log):
    await log.tok("a")
    await log.tok("again", offset=0)
    for record in log.live:
        feed.offer(record)

    assert drain(feed) == ["a"]


async def test_a_log_with_a_hole_ends_the_request_as_our_fault(feed, log, bus):
    await log.tok("a")
    await log.tok("c", offset=5)
    for record in log.live:
        feed.offer(record)
    await feed.replay(bus)

    assert drain(feed) == ["a", Code.INTERNAL]


async def test_a_log_that_ends_short_of_its_count_is_our_fault(feed, log, bus):
    await log.tok("a")
    await log.fin(num=9)
    for record in log.live:
        feed.offer(record)
    await feed.replay(bus)

    assert drain(feed) == ["a", Code.INTERNAL]


UNREADABLE = {
    "junk": b"\xc1junk",
    "foreign values": msgspec.msgpack.encode({"choices": [{"o": 0, "ev": [{"type": "ZEBRA-4711"}]}]}),
    "nested too deeply": b"\x81\xa1x" + b"\x91" * 50_000 + b"\xc0",
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("kind", ["tok", "fin"])
async def test_a_logged_record_that_cannot_be_read_ends_the_request_as_our_fault(feed, log, bus, kind, data):
    await log.tok("a")
    await bus.publish(subjects.run("ing", "r", kind), data)
    with structlog.testing.capture_logs() as entries:
        await feed.replay(bus)

    assert drain(feed) == ["a", Code.INTERNAL]
    assert feed.is_broken
    assert [entry["event"] for entry in entries] == ["run_record_unreadable"]
    assert "ZEBRA" not in str(entries)


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_live_record_that_cannot_be_read_is_looked_up_in_the_log(feed, log, bus, data):
    await log.tok("a")
    await log.tok("b")
    feed.offer(log.live[0])
    feed.offer(Record("out.ing.r.tok", data, log.live[1].seq, prev=log.live[0].seq))

    assert drain(feed) == ["a"]
    assert feed.check_at <= feed_time()
    await feed.replay(bus)

    assert drain(feed) == ["b"]
    assert not feed.is_broken


async def test_a_failure_is_passed_on(feed, log):
    await log.fin(num=0, failure=Failure(code=Code.QUEUE_TIMEOUT, message="late"))
    feed.offer(log.live[0])

    assert drain(feed) == [Code.QUEUE_TIMEOUT]


async def test_nothing_follows_the_end(feed, log):
    await log.fin(num=0)
    feed.offer(log.live[0])
    feed.offer(log.live[0])
    await log.tok("zombie")
    feed.offer(log.live[-1])

    assert drain(feed) == ["fin"]


async def test_a_lease_is_noticed_live_and_in_the_log(feed, log, bus):
    await log.write("lease", LeaseRecord(wid="decode-1", attempt=1, nonce=b"n"))
    other = Feed("ing", "r", silence_s=1)
    feed.offer(log.live[0])
    await other.replay(bus)

    assert feed.is_leased
    assert other.is_leased


async def test_a_queue_that_is_away_is_asked_again_later(feed, log):
    class Away:
        async def read(self, *_args, **_kwargs):
            raise BusUnavailableError("away")

    await log.tok("a")
    await log.tok("b")
    feed.offer(log.live[1])
    await feed.replay(Away())

    assert feed.check_at > feed_time()
    await feed.replay(log.bus)
    assert drain(feed) == ["a", "b"]


async def test_waiting_ends_at_the_given_time_and_leaves_no_timer(feed):
    await asyncio.wait_for(feed.wait(feed_time() + 0.01), 1)
    feed.close()

    assert drain(feed) == []


def feed_time():
    return asyncio.get_running_loop().time()
