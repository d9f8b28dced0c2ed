"""Items of the tokenize queue, over the in-memory bus."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from headrace.shared import runlog, subjects
from headrace.shared.cancels import Cancels
from headrace.shared.errors import Code, QueueFullError
from headrace.shared.messages import Accepted, Conversation, Deadlines, Text, Tokenized, encode
from headrace.shared.packing import unpack_ids
from headrace.shared.records import CancelRecord, DeadLetter
from headrace.tokenize.handle import Rules, Served
from headrace.tokenize.items import Tokenizing

WID = "tokenize-test"


@pytest.fixture
async def desk(bus, served):
    """The stage's item handler with a bus, as tests use it."""
    cancels = Cancels(bus)
    await cancels.start()
    with ThreadPoolExecutor(2) as threads:
        yield Desk(
            bus, Tokenizing(bus, WID, {"scripted": served}, Rules(), threads=threads, cancels=cancels, max_attempts=3)
        )
    await cancels.close()


class Desk:
    """Publishes items, has them handled, looks at what came of them."""

    def __init__(self, bus, items: Tokenizing) -> None:
        self.bus = bus
        self.items = items

    async def put(self, item: Accepted | bytes, subject: str = "") -> None:
        data = item if isinstance(item, bytes) else encode(item)
        await self.bus.publish(subject or subjects.tok(item.request.cls, item.request.rid), data)

    async def take(self, cls: str = "int"):
        (delivery,) = await self.bus.fetch(subjects.TOKQ, f"tok-{cls}", batch=1, timeout_s=5)
        return delivery

    async def play(self, item: Accepted) -> None:
        await self.put(item)
        await self.items.handle(await self.take(item.request.cls))

    async def routed(self, item: Accepted) -> Tokenized | None:
        record = await self.bus.last(subjects.RTEQ, subjects.route(item.request.cls, item.request.rid))
        return None if record is None else msgspec.msgpack.decode(record.data, type=Tokenized)

    async def failure(self, item: Accepted):
        fin = (await runlog.read_log(self.bus, item.request.ing, item.request.rid)).fin
        return None if fin is None else fin.failure

    async def is_done(self, item: Accepted) -> bool:
        return await self.bus.last(subjects.TOKQ, subjects.tok(item.request.cls, item.request.rid)) is None

    async def letter(self, rid: str) -> DeadLetter:
        record = await self.bus.last(subjects.DLQ, subjects.dead_letter("tokenize", rid))
        assert record is not None
        return msgspec.msgpack.decode(record.data, type=DeadLetter)


@pytest.mark.parametrize("cls", ["int", "bat"])
async def test_an_item_is_handed_on_and_acked(desk, accepted, cls):
    item = accepted(Text(text="abc"), cls=cls)
    before = time.time()

    await desk.play(item)

    routed = await desk.routed(item)
    assert unpack_ids(routed.prompt_ids) == list(b"abc")
    assert before * 1000 - 1 <= routed.accepted_ms <= time.time() * 1000 + 1
    assert await desk.is_done(item)
    assert await desk.failure(item) is None


async def test_a_redelivered_item_is_handed_on_once(desk, accepted):
    item = accepted()
    await desk.put(item)
    delivery = await desk.take()

    await desk.items.handle(delivery)
    await desk.items.handle(delivery)

    assert len(await desk.bus.read(subjects.RTEQ, "work.route.>")) == 1


async def test_a_request_that_cannot_be_served_ends_with_its_error(desk, accepted):
    item = accepted(Text(text=""), protocol="completion")

    await desk.play(item)

    assert (await desk.failure(item)).code is Code.INVALID_PROMPT
    assert await desk.routed(item) is None
    assert await desk.is_done(item)


async def test_an_unknown_model_ends_the_request(desk, accepted):
    item = accepted(model="gpt-9")

    await desk.play(item)

    assert (await desk.failure(item)).code is Code.MODEL_NOT_FOUND
    assert (await desk.failure(item)).param == "model"


async def test_an_undecodable_item_is_kept_as_a_dead_letter(desk):
    await desk.put(b"\xc1 nonsense", "work.tok.int.rid1")

    await desk.items.handle(await desk.take())

    assert (await desk.letter("rid1")).payload == b"\xc1 nonsense"
    assert await desk.bus.last(subjects.TOKQ, "work.tok.>") is None


@pytest.mark.parametrize("fields", [{"rid": "a.>"}, {"ing": "in.gress"}, {"cls": "bat"}])
async def test_an_item_that_does_not_fit_its_subject_is_kept_as_a_dead_letter(desk, accepted, fields):
    await desk.put(encode(accepted(**fields)), "work.tok.int.01arz3ndektsv4rrffq69g5fav")

    await desk.items.handle(await desk.take())

    assert (await desk.letter("01arz3ndektsv4rrffq69g5fav")).failure.code is Code.INVALID_REQUEST
    assert await desk.bus.read(subjects.RUN, "run.>") == []
    assert await desk.bus.last(subjects.TOKQ, "work.tok.>") is None


async def test_a_cancelled_request_is_not_tokenized(desk, accepted):
    item = accepted()
    seen = asyncio.Event()

    async def note(_record) -> None:
        seen.set()

    await desk.bus.subscribe(subjects.OUT_CANCELS, note)
    await runlog.cancel(desk.bus, item.request.ing, item.request.rid, CancelRecord(reason="api"))
    await seen.wait()

    await desk.play(item)

    assert (await desk.failure(item)).code is Code.CANCELLED
    assert await desk.routed(item) is None


async def test_a_redelivered_item_cancelled_before_this_process_is_not_tokenized(desk, accepted, bus):
    item = accepted()
    await runlog.cancel(bus, item.request.ing, item.request.rid, CancelRecord(reason="api"))
    desk.items._cancels = Cancels(bus)
    await desk.put(item)
    delivery = await desk.take()
    delivery.num_delivered = 2

    await desk.items.handle(delivery)

    assert (await desk.failure(item)).code is Code.CANCELLED


async def test_an_item_older_than_its_queue_budget_ends_the_request(desk, accepted):
    item = accepted(deadlines=Deadlines(queue_s=5, first_token_s=60, stall_s=15, total_s=60))
    await desk.put(item)
    delivery = await desk.take()
    delivery.time_s -= 10
    await desk.bus.publish(subjects.worker_key("tokenize", WID), b"beat")

    await desk.items.handle(delivery)

    assert (await desk.failure(item)).code is Code.QUEUE_TIMEOUT


async def test_a_worker_whose_clock_is_ahead_ends_nothing(desk, accepted):
    """The item looks old to this machine, but the server's own stamps say that it is not."""
    item = accepted(deadlines=Deadlines(queue_s=5, first_token_s=60, stall_s=15, total_s=60))
    await desk.put(item)
    delivery = await desk.take()
    delivery.time_s -= 10

    await desk.items.handle(delivery)

    assert await desk.failure(item) is None
    assert await desk.routed(item) is not None


async def test_an_item_that_workers_keep_dying_on_is_given_up(desk, accepted):
    item = accepted()
    await desk.put(item)
    delivery = await desk.take()
    delivery.num_delivered = 4

    await desk.items.handle(delivery)

    assert (await desk.failure(item)).code is Code.WORKER_CRASHED
    assert (await desk.letter(item.request.rid)).attempts == 3


async def test_a_full_queue_is_waited_for(desk, accepted, bus):
    item = accepted()
    desk.items._bus = Full(bus, refusals=1)

    await desk.play(item)

    assert await desk.routed(item) is not None


async def test_a_request_that_waits_too_long_for_a_full_queue_ends(desk, accepted, bus):
    item = accepted(deadlines=Deadlines(queue_s=5, first_token_s=60, stall_s=15, total_s=60))
    await desk.put(item)
    delivery = await desk.take()
    desk.items._bus = Full(bus, refusals=100, aged=delivery)
    await desk.bus.publish(subjects.worker_key("tokenize", WID), b"beat")

    await desk.items.handle(delivery)

    assert (await desk.failure(item)).code is Code.QUEUE_TIMEOUT


class Full:
    """A bus whose route queue refuses the first items; `aged` grows old meanwhile."""

    def __init__(self, bus, refusals: int, aged=None) -> None:
        self._bus = bus
        self._refusals = refusals
        self._aged = aged

    def __getattr__(self, name: str):
        return getattr(self._bus, name)

    async def publish(self, subject: str, data: bytes, **options) -> int:
        if subject.startswith("work.route.") and self._refusals:
            self._refusals -= 1
            if self._aged is not None:
                self._aged.time_s -= 10
            raise QueueFullError("full")
        return await self._bus.publish(subject, data, **options)


async def test_a_bug_ends_that_request_and_no_other(desk, accepted, served, capsys):
    class Broken:
        def render(self, *_args) -> str:
            raise ZeroDivisionError("secret prompt text")

    desk.items._models = {"scripted": Served(served.model, Broken())}
    broken, fine = accepted(Conversation(turns=())), accepted(Text(text="ok"))

    await desk.play(broken)
    await desk.play(fine)

    failure = await desk.failure(broken)
    assert failure.code is Code.INTERNAL
    assert "secret" not in failure.message
    out = capsys.readouterr()
    assert "tokenize_failed" in out.out + out.err
    assert "secret" not in out.out + out.err
    assert await desk.routed(fine) is not None
