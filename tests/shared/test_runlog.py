import pytest

from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus
from headrace.shared.errors import Code, Failure, FencedError
from headrace.shared.packing import pack_ids, unpack_ids
from headrace.shared.records import CancelRecord, ChoiceChunk, FinRecord, TextEvent, TokRecord


def tok(offset: int, *ids: int) -> TokRecord:
    return TokRecord(choices=(ChoiceChunk(o=offset, t=pack_ids(ids), ev=(TextEvent("x"),)),))


async def test_a_log_reads_back_as_written(bus: Bus) -> None:
    lease = await runlog.take_lease(bus, "i", "r", "decode-1", attempt=1, item_seq=7)
    await runlog.append(bus, lease, tok(0, 1, 2))
    await runlog.append(bus, lease, tok(2, 3))
    assert await runlog.finish(bus, lease, FinRecord(digest=b"d"))

    log = await runlog.read_log(bus, "i", "r")

    assert [unpack_ids(c.t) for _, record in log.toks for c in record.choices] == [[1, 2], [3]]
    assert log.lease is not None
    assert (log.lease.wid, log.lease.item_seq, log.lease_seq) == ("decode-1", 7, lease.seq)
    assert log.fin == FinRecord(digest=b"d")


async def test_a_second_holder_fences_the_first(bus: Bus) -> None:
    first = await runlog.take_lease(bus, "i", "r", "a", attempt=1)
    await runlog.append(bus, first, tok(0, 1))
    second = await runlog.take_lease(bus, "i", "r", "b", attempt=2, expected_seq=first.seq)

    with pytest.raises(FencedError):
        await runlog.append(bus, first, tok(1, 2))
    assert not await runlog.finish(bus, first, FinRecord())
    await runlog.append(bus, second, tok(1, 3))

    log = await runlog.read_log(bus, "i", "r")
    assert [c.t for _, record in log.toks for c in record.choices] == [pack_ids([1]), pack_ids([3])]


async def test_only_one_of_two_takers_gets_the_lease(bus: Bus) -> None:
    await runlog.take_lease(bus, "i", "r", "a", attempt=1)

    with pytest.raises(FencedError):
        await runlog.take_lease(bus, "i", "r", "b", attempt=1)


async def test_end_gives_way_to_a_holder_and_to_an_earlier_end(bus: Bus) -> None:
    fin = FinRecord(failure=Failure(code=Code.QUEUE_TIMEOUT, message="late"))
    lease = await runlog.take_lease(bus, "i", "held", "a", attempt=1)

    assert not await runlog.end(bus, "i", "held", "ingress", fin)
    assert await runlog.end(bus, "i", "free", "ingress", fin)
    assert not await runlog.end(bus, "i", "free", "router", fin)

    assert await runlog.finish(bus, lease, FinRecord())
    assert not await runlog.end(bus, "i", "held", "router", fin, over=lease.seq)
    assert len(await bus.read(subjects.RUN, subjects.run("i", "held", "fin"))) == 1


async def test_cancel_is_one_record_however_often_it_is_written(bus: Bus) -> None:
    for _ in range(3):
        await runlog.cancel(bus, "i", "r", CancelRecord(reason="disconnect"))

    log = await runlog.read_log(bus, "i", "r")
    assert log.cancel == CancelRecord(reason="disconnect")
    assert len(await bus.read(subjects.RUN, subjects.run("i", "r", ">"))) == 1


async def test_a_long_log_is_read_whole_and_from_any_point(bus: Bus) -> None:
    lease = await runlog.take_lease(bus, "i", "r", "a", attempt=1)
    seqs = [await runlog.append(bus, lease, tok(n, n)) for n in range(1203)]

    assert len((await runlog.read_log(bus, "i", "r")).toks) == 1203
    assert [seq for seq, _ in (await runlog.read_log(bus, "i", "r", after=seqs[1199])).toks] == seqs[1200:]


async def test_releasing_after_new_tokens_clears_what_happened_before(bus: Bus) -> None:
    """The release hides the tokens from whoever judges the newest lease."""
    for rid, num_tokens, attempt in (("fresh", 0, 3), ("moved", 1, 1)):
        lease = await runlog.take_lease(bus, "i", rid, "a", attempt=3)
        for n in range(num_tokens):
            await runlog.append(bus, lease, tok(n, n))
        await runlog.release(bus, lease, "a")

        newest = (await runlog.read_log(bus, "i", rid)).lease
        assert newest is not None
        assert (newest.released, newest.attempt) == (True, attempt)


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x91" * 100_000, b"", b"\x81\xa3wid\x01"])
async def test_a_lease_that_cannot_be_read_can_be_taken_over(bus: Bus, garbage: bytes) -> None:
    seq = await bus.publish(subjects.run("i", "r", "lease"), garbage)
    log = await runlog.read_log(bus, "i", "r")
    assert (log.lease, log.lease_seq) == (None, seq)

    lease = await runlog.take_lease(bus, "i", "r", "a", attempt=1, expected_seq=log.lease_seq)

    assert await runlog.finish(bus, lease, FinRecord())


async def test_records_of_kinds_to_come_are_passed_over(bus: Bus) -> None:
    await bus.publish(subjects.run("i", "r", "note"), b"from a later version")
    await bus.publish("run.i.r.note.more", b"deeper")
    lease = await runlog.take_lease(bus, "i", "r", "a", attempt=1)
    await runlog.append(bus, lease, tok(0, 1))

    assert len((await runlog.read_log(bus, "i", "r")).toks) == 1
