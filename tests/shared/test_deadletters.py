"""Items that could not be worked on: tried again for a while, then kept, and their request told."""

import msgspec
import pytest

from headrace.shared import deadletters, runlog, streams, subjects
from headrace.shared.bus import Bus, ConsumerSpec, Delivery
from headrace.shared.deadletters import answer_failure, decode_or_bury, is_hopeless, is_in_place, retry_delay_s
from headrace.shared.errors import BusUnavailableError, Code
from headrace.shared.ids import new_rid
from headrace.shared.messages import Accepted, Deadlines, Request, Text, encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import ChoiceChunk, FinRecord, LeaseRecord, ReqRecord, TokRecord

WID, ING = "tokenize-test", "ingress-test"
BUG = RuntimeError("the text of somebody's prompt")
AWAY = BusUnavailableError("no answer")


async def accepted(bus: Bus) -> str:
    """A request with its record and its item."""
    rid = new_rid()
    req = ReqRecord(tenant="default", protocol="chat", model="m")
    await bus.publish(subjects.run(ING, rid, "req"), encode(req))
    await bus.publish(subjects.tok("int", rid), b"item")
    return rid


async def take(bus: Bus) -> Delivery:
    (delivery,) = await bus.fetch(subjects.TOKQ, "tok-int", batch=1, timeout_s=5)
    return delivery


async def fail(bus: Bus, error: Exception, times: int) -> None:
    """The handler of the only item fails so many times in a row."""
    for _ in range(times):
        delivery = await take(bus)
        await answer_failure(bus, WID, delivery, error)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr(deadletters, "_BUG_DELAY_S", 0.0)
    monkeypatch.setattr(deadletters, "_AWAY_DELAY_S", 0.0)


def test_a_bug_is_tried_less_often_than_a_queue_that_is_away() -> None:
    assert [is_hopeless(BUG, n) for n in (1, 2, 3)] == [False, False, True]
    assert [is_hopeless(AWAY, n) for n in (3, 19, 20)] == [False, False, True]


def test_pauses_grow_and_outlast_minutes_of_trouble() -> None:
    pauses = [retry_delay_s(AWAY, n) for n in range(1, deadletters.MAX_DELIVER)]

    assert pauses == sorted(pauses)
    assert retry_delay_s(BUG, 1) < pauses[0] <= 2
    assert 300 < sum(pauses) < 1800


def test_the_last_delivery_is_the_one_after_which_the_server_gives_up() -> None:
    specs: list[ConsumerSpec] = [*streams.CONSUMERS, streams.worker_consumer_spec("decode", "decode-1", 1)]

    assert {spec.max_deliver for spec in specs} == {deadletters.MAX_DELIVER}


@pytest.mark.usefixtures("impatient")
async def test_an_item_that_keeps_breaking_its_handler_is_buried_and_its_request_ended(bus: Bus) -> None:
    rid = await accepted(bus)

    await fail(bus, BUG, 2)
    assert (await runlog.read_log(bus, ING, rid)).fin is None
    await fail(bus, BUG, 1)

    fin = (await runlog.read_log(bus, ING, rid)).fin
    assert fin is not None
    assert fin.failure is not None
    assert fin.failure.code is Code.INTERNAL
    assert await bus.last(subjects.TOKQ, "work.tok.>") is None
    assert len(await bus.read(subjects.DLQ, subjects.dead_letter("tokenize", rid))) == 1


@pytest.mark.usefixtures("impatient")
async def test_an_item_is_not_forgotten_after_its_last_delivery(bus: Bus) -> None:
    rid = await accepted(bus)

    await fail(bus, AWAY, deadletters.MAX_DELIVER)

    assert (await runlog.read_log(bus, ING, rid)).fin is not None
    assert await bus.last(subjects.TOKQ, "work.tok.>") is None


async def test_the_first_retry_comes_soon(bus: Bus) -> None:
    await accepted(bus)

    await fail(bus, BUG, 1)

    assert (await take(bus)).num_delivered == 2


async def test_what_a_broken_handler_says_is_not_logged(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    await accepted(bus)

    try:
        raise BUG
    except RuntimeError as error:
        await answer_failure(bus, WID, await take(bus), error)

    logged = "".join(capsys.readouterr())
    assert "item_broken" in logged
    assert "test_deadletters.py" in logged
    assert "prompt" not in logged


@pytest.mark.usefixtures("impatient")
async def test_what_the_log_holds_stays_in_the_end_of_a_request_given_up(bus: Bus) -> None:
    rid = await accepted(bus)
    lease = await runlog.take_lease(bus, ING, rid, WID, attempt=2, item_seq=1)
    await runlog.append(bus, lease, TokRecord(choices=(ChoiceChunk(o=0, t=pack_ids([1, 2])),)))

    await fail(bus, BUG, 3)

    fin = (await runlog.read_log(bus, ING, rid)).fin
    assert fin is not None
    assert fin.attempts == 2
    assert fin.choices[0].n == 2


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_another_worker_has_is_not_ended(bus: Bus) -> None:
    rid = await accepted(bus)
    lease = LeaseRecord(wid="decode-other", attempt=1, nonce=b"n", item_seq=77)
    await bus.publish(subjects.run(ING, rid, "lease"), encode(lease))

    await fail(bus, BUG, 3)

    assert (await runlog.read_log(bus, ING, rid)).fin is None
    assert await bus.last(subjects.TOKQ, "work.tok.>") is None


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_has_ended_keeps_its_end(bus: Bus) -> None:
    rid = await accepted(bus)
    await runlog.end(bus, ING, rid, "ingress-test", FinRecord(digest=b"first"))

    await fail(bus, BUG, 3)

    assert (await runlog.read_log(bus, ING, rid)).fin == FinRecord(digest=b"first")
    assert len(await bus.read(subjects.RUN, subjects.run(ING, rid, "fin"))) == 1


@pytest.mark.usefixtures("impatient")
async def test_an_unreadable_log_does_not_keep_the_item_alive(bus: Bus) -> None:
    rid = await accepted(bus)
    await bus.publish(subjects.run(ING, rid, "tok"), b"\xc1 nonsense")

    await fail(bus, BUG, 3)

    assert await bus.last(subjects.TOKQ, "work.tok.>") is None


@pytest.mark.usefixtures("impatient")
async def test_an_item_is_kept_while_its_request_cannot_be_ended(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await accepted(bus)

    async def away(*_args: object, **_options: object) -> None:
        raise AWAY

    with monkeypatch.context() as patch:
        patch.setattr(runlog, "end", away)
        await fail(bus, BUG, 3)

    assert await bus.last(subjects.TOKQ, "work.tok.>") is not None


def request(**fields: object) -> Request:
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=600)
    return Request(**{"rid": new_rid(), "ing": ING, "model": "m", "deadlines": deadlines, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"ing": "a\r\nPUB x 1\r\ny"},
        {"ing": "a.b"},
        {"ing": ""},
        {"ing": "*"},
        {"ing": ">"},
        {"ing": "x" * 5000},
        {"rid": "y" * 10_000},
        {"rid": "*"},
        {"cls": "bat"},
    ],
    ids=str,
)
async def test_an_item_whose_ids_do_not_fit_its_subject_is_buried_unused(bus: Bus, fields: dict[str, object]) -> None:
    rid = new_rid()
    item = Accepted(request=request(**{"rid": rid, **fields}), prompt=Text(text="hi"))
    await bus.publish(subjects.tok("int", rid), encode(item))
    decoder = msgspec.msgpack.Decoder(Accepted)

    assert await decode_or_bury(bus, WID, await take(bus), decoder) is None

    assert await bus.read(subjects.TOKQ, "work.>") == []
    assert len(await bus.read(subjects.DLQ, "dlq.>")) == 1
    assert await bus.read(subjects.RUN, "run.>") == []


@pytest.mark.parametrize("queue", ["tok.int", "route.int", "place.int", "pre.prefill-1", "dec.decode-1"])
def test_an_item_in_its_place_is_used(queue: str) -> None:
    wanted = request()

    assert is_in_place(wanted, f"work.{queue}.{wanted.rid}")
