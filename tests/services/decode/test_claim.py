"""Who may run a request: the lease decides, the log behind it tells from where."""

import asyncio

import pytest

from headrace.shared import runlog, streams, subjects
from headrace.shared.bus import Delivery
from headrace.shared.errors import FencedError
from headrace.shared.messages import encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import CancelRecord, ChoiceChunk, TextState, TokRecord
from headrace.shared.reports import WorkerReport

OWN, OTHER = "decode-own", "decode-other"


class Known:
    """A registry of the given workers."""

    def __init__(self, *wids: str) -> None:
        self._wids = wids

    def get(self, wid: str) -> WorkerReport | None:
        return WorkerReport(stage="decode", wid=wid) if wid in self._wids else None


@pytest.fixture
def item(kit):
    return kit.item()


async def placed(bus, item, wid=OWN) -> Delivery:
    """The item in a worker's queue, and as that worker holds it."""
    rid = item.request.rid
    await bus.ensure_consumer(streams.worker_consumer_spec("decode", wid, 4))
    await bus.publish(subjects.dec(wid, rid), encode(item))
    (delivery,) = await bus.fetch(subjects.DECQ, f"dec-{wid}", batch=1, timeout_s=5)
    return delivery


def tok(offset: int, text: bytes, chars: int) -> TokRecord:
    return TokRecord(choices=(ChoiceChunk(o=offset, t=pack_ids(list(text)), state=TextState(chars=chars)),))


async def test_a_new_request_is_claimed_from_its_start(bus, kit, item):
    delivery = await placed(bus, item)

    claimed = await kit.claim(bus, Known(OWN), OWN, delivery, item)

    assert claimed.generated == []
    assert claimed.end is None
    assert (await runlog.read_log(bus, kit.ING, item.request.rid)).lease.item_seq == delivery.seq


async def test_a_new_request_is_claimed_in_one_exchange_with_the_server(bus, kit, item):
    delivery = await placed(bus, item)
    calls: list[str] = []

    class Counting:
        """The bus, every call noted; a call that follows an answer would show as a second exchange."""

        def __getattr__(self, name: str) -> object:
            verb = getattr(bus, name)

            async def noted(*args: object, **options: object) -> object:
                calls.append(f"ask {name}")
                answer = await verb(*args, **options)
                await asyncio.sleep(0)
                calls.append("answer")
                return answer

            return noted

    assert await kit.claim(Counting(), Known(OWN), OWN, delivery, item) is not None

    assert calls == ["ask publish", "ask last", "answer", "answer"]


async def test_a_cancel_before_the_first_lease_is_seen(bus, kit, item):
    await runlog.cancel(bus, kit.ING, item.request.rid, CancelRecord(reason="disconnect", by=kit.ING))

    claimed = await kit.claim(bus, Known(OWN), OWN, await placed(bus, item), item)

    assert claimed.log.cancel is not None


async def test_a_successor_goes_on_behind_the_last_logged_token(bus, kit, item):
    first = await kit.claim(bus, Known(OTHER), OTHER, await placed(bus, item, OTHER), item)
    await runlog.append(bus, first.lease, tok(0, b"ab", 2))
    await runlog.append(bus, first.lease, tok(2, b"c", 3))

    second = await kit.claim(bus, Known(OWN), OWN, await placed(bus, item), item)

    assert bytes(second.generated) == b"abc"
    assert second.lease.attempt == 2
    assert second.agrees_with(TextState(chars=3))
    with pytest.raises(FencedError):
        await runlog.append(bus, first.lease, tok(3, b"d", 4))


@pytest.mark.parametrize(
    ("records", "replayed"),
    [
        pytest.param([tok(0, b"ab", 2)], TextState(chars=3), id="another text"),
        pytest.param([tok(0, b"ab", 2)], TextState(chars=2, parser=9), id="another parser"),
        pytest.param([tok(0, b"ab", 2), tok(3, b"c", 3)], TextState(chars=3), id="a gap"),
        pytest.param([tok(1, b"ab", 2)], TextState(chars=2), id="no beginning"),
    ],
)
async def test_a_log_that_a_replay_does_not_meet_is_not_agreed_with(bus, kit, item, records, replayed):
    first = await kit.claim(bus, Known(), OTHER, await placed(bus, item, OTHER), item)
    for record in records:
        await runlog.append(bus, first.lease, record)

    claimed = await kit.claim(bus, Known(), OWN, await placed(bus, item), item)

    assert not claimed.agrees_with(replayed)


async def test_an_ended_request_is_not_claimed(bus, kit, item):
    first = await kit.claim(bus, Known(), OTHER, await placed(bus, item, OTHER), item)
    await runlog.finish(bus, first.lease, kit.FinRecord())

    assert await kit.claim(bus, Known(), OWN, await placed(bus, item), item) is None


async def test_a_copy_of_a_request_that_runs_elsewhere_is_left_to_its_holder(bus, kit, item):
    await kit.claim(bus, Known(OTHER), OTHER, await placed(bus, item, OTHER), item)

    assert await kit.claim(bus, Known(OWN, OTHER), OWN, await placed(bus, item), item) is None


async def test_a_holder_without_a_stored_item_is_replaced(bus, kit, item):
    held = await placed(bus, item, OTHER)
    await kit.claim(bus, Known(OTHER), OTHER, held, item)
    await bus.ack(held)

    assert await kit.claim(bus, Known(OWN, OTHER), OWN, await placed(bus, item), item) is not None


async def test_a_released_request_is_free_whoever_held_it(bus, kit, item):
    first = await kit.claim(bus, Known(OTHER), OTHER, await placed(bus, item, OTHER), item)
    await runlog.append(bus, first.lease, tok(0, b"a", 1))
    await runlog.release(bus, first.lease, OTHER)

    claimed = await kit.claim(bus, Known(OWN, OTHER), OWN, await placed(bus, item), item)

    assert claimed.lease.attempt == 1


async def test_of_two_claimants_at_once_the_last_lease_wins_and_nothing_forks(bus, kit, item):
    own, other = await placed(bus, item), await placed(bus, item, OTHER)
    registry = Known()  # neither knows the other

    claims = await asyncio.gather(
        kit.claim(bus, registry, OWN, own, item), kit.claim(bus, registry, OTHER, other, item)
    )

    newest = (await runlog.read_log(bus, kit.ING, item.request.rid)).lease_seq
    for claimed in claims:
        if claimed.lease.seq == newest:
            await runlog.append(bus, claimed.lease, tok(0, b"a", 1))
        else:
            with pytest.raises(FencedError):
                await runlog.append(bus, claimed.lease, tok(0, b"b", 1))
    assert len((await runlog.read_log(bus, kit.ING, item.request.rid)).toks) == 1


async def test_what_is_written_between_reading_and_the_lease_is_not_missed(bus, kit, item):
    """The holder appends after the log was read, before the lease changes hands."""
    first = await kit.claim(bus, Known(), OTHER, await placed(bus, item, OTHER), item)
    delivery = await placed(bus, item)

    class Late:
        """The bus on which the holder appends just before the lease is taken."""

        async def publish(self, subject: str, data: bytes, **options: object) -> int:
            if subject.endswith(".lease") and options["expect"].seq == first.lease.seq:
                await runlog.append(bus, first.lease, tok(0, b"late", 4))
            return await bus.publish(subject, data, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(bus, name)

    claimed = await kit.claim(Late(), Known(), OWN, delivery, item)

    assert bytes(claimed.generated) == b"late"


async def test_a_lease_that_never_holds_still_proves_nothing(bus, kit, item):
    """Then the item must be tried again, not acked."""
    delivery = await placed(bus, item)

    class Contended:
        async def publish(self, subject: str, data: bytes, **options: object) -> int:
            raise FencedError("somebody was faster")

        def __getattr__(self, name: str) -> object:
            return getattr(bus, name)

    with pytest.raises(FencedError):
        await kit.claim(Contended(), Known(), OWN, delivery, item)
