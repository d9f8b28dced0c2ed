"""One decode worker and its items: who answers for which, whatever happens to the first to hold it."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from headrace.decode import run as running
from headrace.decode.terms import Outcome, Signals
from headrace.shared import runlog, subjects
from headrace.shared.errors import BusUnavailableError, Code
from headrace.shared.messages import Deadlines, Sampling, Script, ScriptStep, Tokenized, encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import CancelRecord, ChoiceChunk, EndEvent, LeaseRecord, TextEvent, TextState, TokRecord


def gauge(name: str, /, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace_{name}", labels) or 0.0


async def is_idle(desk) -> None:
    """Everything that is held per request is gone."""

    async def nothing_held() -> bool:
        held = [gauge("map_size", name="decode_held"), gauge("map_size", name="engine_scripted")]
        return not any([*held, gauge("slots_used"), gauge("requests_active", stage="decode"), gauge("kv_blocks_used")])

    await desk.until(nothing_held)


async def test_a_request_runs_to_its_end_and_leaves_nothing(desk, kit):
    worker = await desk.start()
    item = await desk.put(worker, kit.words(3))

    log = await desk.ended(item)

    assert kit.text(log) == "w0 w1 w2 "
    assert log.fin.choices[0].cause == "eos"
    await desk.until(desk.is_queue_empty)
    await is_idle(desk)


async def test_a_zombie_writes_nothing_after_it_lost_the_lease(desk, kit):
    worker = await desk.start()
    item = await desk.put(worker, kit.words(500, pause_ms=20))
    rid = item.request.rid
    taken_over = (await desk.begun(item)).lease_seq
    lease = await runlog.take_lease(desk.bus, kit.ING, rid, "decode-new", attempt=2, expected_seq=taken_over)

    await is_idle(desk)
    log = await desk.log(rid)
    assert max(seq for seq, _ in log.toks) < lease.seq
    assert log.fin is None
    # Its item answers for nothing now, but only who holds the lease may say so.
    assert not await desk.is_queue_empty()


@pytest.mark.parametrize("where", ["text", "parser"])
async def test_a_log_that_cannot_be_continued_truly_ends_in_an_error(desk, kit, where):
    worker = await desk.start()
    item = kit.item(kit.words(3))
    rid = item.request.rid
    lease = await runlog.take_lease(desk.bus, kit.ING, rid, "decode-gone", attempt=1)
    wrong = TextState(chars=99) if where == "text" else TextState(chars=3, parser=99)
    chunk = ChoiceChunk(o=0, t=pack_ids([1000]), ev=(TextEvent("w0 "),), state=wrong)
    await runlog.append(desk.bus, lease, TokRecord(choices=(chunk,)))
    await desk.bus.publish(subjects.dec(worker.wid, rid), encode(item))

    log = await desk.ended(item)

    assert log.fin.failure.code is Code.INTERNAL
    assert len(log.toks) == 1
    assert log.fin.choices[0].n == 1


async def test_a_log_with_all_its_tokens_but_no_end_gets_it(desk, kit):
    """Held-back text is still owed: the predecessor may have waited for more of a stop string."""
    worker = await desk.start()
    item = kit.item(max_new=3, sampling=Sampling(stop=("cd",)))
    rid = item.request.rid
    lease = await runlog.take_lease(desk.bus, kit.ING, rid, "decode-gone", attempt=1)
    chunk = ChoiceChunk(o=0, t=pack_ids(list(b"abc")), ev=(TextEvent("ab"),), state=TextState(chars=2))
    await runlog.append(desk.bus, lease, TokRecord(choices=(chunk,)))
    await desk.bus.publish(subjects.dec(worker.wid, rid), encode(item))

    log = await desk.ended(item)

    assert kit.text(log) == "abc"
    assert kit.ends(log) == [EndEvent("length")]
    assert (log.fin.choices[0].n, log.fin.choices[0].cause) == (3, "length")


async def test_an_end_that_is_logged_only_needs_its_terminal_record(desk, kit):
    worker = await desk.start()
    item = kit.item(kit.words(3))
    rid = item.request.rid
    lease = await runlog.take_lease(desk.bus, kit.ING, rid, "decode-gone", attempt=1)
    ended = (TextEvent("w0"), EndEvent("stop", " "))
    await runlog.append(desk.bus, lease, TokRecord(choices=(ChoiceChunk(o=0, t=pack_ids([1000]), ev=ended),)))
    await desk.bus.publish(subjects.dec(worker.wid, rid), encode(item))

    log = await desk.ended(item)

    assert len(log.toks) == 1
    assert (log.fin.choices[0].cause, log.fin.choices[0].match) == ("stop", " ")


class Flaky:
    """Lets a worker's appends fail while `is_broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_broken = False
        self.failed = asyncio.Event()
        self._append = runlog.append
        monkeypatch.setattr("headrace.shared.deadletters._AWAY_DELAY_S", 0.05)
        monkeypatch.setattr(runlog, "append", self._maybe)

    async def _maybe(self, *args: object, **options: object) -> int:
        if self.is_broken:
            self.failed.set()
            raise BusUnavailableError("no answer")
        return await self._append(*args, **options)


async def test_a_second_delivery_takes_over_when_the_first_fails(desk, kit, monkeypatch):
    """The same item comes twice when ack timers ran out; acking it for a run that failed would lose the request."""
    flaky = Flaky(monkeypatch)
    worker = await desk.start()
    item = await desk.put(worker, kit.words(6, pause_ms=50))
    await desk.begun(item)
    # The second delivery: another copy of the request in the same worker's queue.
    await desk.bus.purge(subjects.DECQ, "work.dec.>")
    await desk.bus.publish(subjects.dec(worker.wid, item.request.rid), encode(item))

    async def is_waiting() -> bool:
        return gauge("slots_used") == 2

    await desk.until(is_waiting)
    flaky.is_broken = True
    await flaky.failed.wait()
    flaky.is_broken = False

    log = await desk.ended(item)
    assert kit.text(log) == "w0 w1 w2 w3 w4 w5 "
    await desk.until(desk.is_queue_empty)


async def test_an_append_that_fails_is_tried_again_without_loss(desk, kit, monkeypatch):
    flaky = Flaky(monkeypatch)
    worker = await desk.start()
    item = await desk.put(worker, kit.words(6, pause_ms=50))
    await desk.begun(item)
    flaky.is_broken = True
    await flaky.failed.wait()
    flaky.is_broken = False

    log = await desk.ended(item)

    assert kit.text(log) == "w0 w1 w2 w3 w4 w5 "
    assert log.fin.attempts == 1
    await is_idle(desk)


async def test_a_bug_in_every_slot_leaves_the_worker_usable_and_ends_the_requests(desk, kit, monkeypatch):
    """Five requests that break the handler on a worker with four slots, then a good one."""

    def broken(self: running.Run, *_args: object) -> None:
        if self._item.request.max_new == 13:
            raise RuntimeError("a bug")

    execute = running.Run.execute

    async def maybe(self: running.Run, signals: Signals) -> Outcome:
        broken(self)
        return await execute(self, signals)

    monkeypatch.setattr(running.Run, "execute", maybe)
    monkeypatch.setattr("headrace.shared.deadletters._BUG_DELAY_S", 0.05)
    worker = await desk.start()
    bad = [await desk.put(worker, kit.words(3), max_new=13) for _ in range(5)]
    good = await desk.put(worker, kit.words(3))

    assert kit.text(await desk.ended(good)) == "w0 w1 w2 "
    for item in bad:
        assert (await desk.ended(item)).fin.failure.code is Code.INTERNAL
    await desk.until(desk.is_queue_empty)
    assert len(await desk.bus.read(subjects.DLQ, "dlq.decode.>")) == 5
    await is_idle(desk)


async def test_a_stalled_request_moves_on(desk, kit):
    worker = await desk.start()
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=0.3, total_s=60)
    steps = (ScriptStep(text="a"), ScriptStep(pause_ms=30_000), ScriptStep(text="b"))
    item = await desk.put(worker, Script(choices=(steps,)), deadlines=deadlines)

    async def has_moved() -> bool:
        return await desk.bus.last(subjects.RTEQ, subjects.place("int", item.request.rid)) is not None

    await desk.until(has_moved)
    log = await desk.log(item.request.rid)
    assert log.lease.released
    assert kit.text(log) == "a"
    await desk.until(desk.is_queue_empty)
    await is_idle(desk)


async def test_waiting_for_the_first_token_is_no_stall(desk, kit):
    worker = await desk.start()
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=0.1, total_s=60)
    steps = (ScriptStep(pause_ms=400), ScriptStep(text="a"), ScriptStep(eos=True))

    log = await desk.ended(await desk.put(worker, Script(choices=(steps,)), deadlines=deadlines))

    assert kit.text(log) == "a"
    assert log.lease.wid == worker.wid


async def test_a_drained_worker_hands_everything_over(desk, kit):
    worker = await desk.start()
    items = [await desk.put(worker, kit.words(200, pause_ms=20)) for _ in range(4)]
    for item in items:
        await desk.begun(item)

    await desk.drain(worker)

    assert await desk.is_queue_empty()
    for item in items:
        rid = item.request.rid
        assert (await desk.log(rid)).lease.released
        assert await desk.bus.last(subjects.RTEQ, subjects.place("int", rid)) is not None


async def test_a_hand_over_keeps_its_item_while_the_item_it_came_from_is_still_queued(desk, kit):
    """The router publishes, then acks. In between, the copy in its queue is on its way out and carries nothing on."""
    item = kit.item(kit.words(200, pause_ms=20))
    rid = item.request.rid
    await desk.bus.publish(subjects.place("int", rid), encode(item))
    (origin,) = await desk.bus.fetch(subjects.RTEQ, "place-int", batch=1, timeout_s=5)
    worker = await desk.start()
    await desk.bus.publish(subjects.dec(worker.wid, rid), encode(item))
    await desk.begun(item)

    await desk.drain(worker)
    await desk.bus.ack(origin)

    assert await desk.bus.last(subjects.DECQ, subjects.dec(worker.wid, rid)) is not None


async def test_a_cancelled_request_frees_all_it_held(desk, kit):
    worker = await desk.start()
    item = await desk.put(worker, kit.words(500, pause_ms=20))
    await desk.begun(item)
    await runlog.cancel(desk.bus, kit.ING, item.request.rid, CancelRecord(reason="disconnect"))

    assert (await desk.ended(item)).fin.failure.code is Code.CANCELLED
    await desk.until(desk.is_queue_empty)
    await is_idle(desk)


async def test_a_tombstone_that_no_message_brought_is_found_in_the_log(desk, kit, monkeypatch):
    """As after a reconnect: the record is stored, nobody heard it."""
    monkeypatch.setattr("headrace.decode.service._CANCEL_CHECK_S", 0.1)
    worker = await desk.start()
    item = await desk.put(worker, kit.words(500, pause_ms=20))
    await desk.begun(item)
    monkeypatch.setattr("headrace.shared.cancels.Cancels._on_cancel", None)
    for ear in [ear for ear in desk.server._core._ears if ear.subject == subjects.OUT_CANCELS]:
        desk.server._core.deafen(ear)
    await runlog.cancel(desk.bus, kit.ING, item.request.rid, CancelRecord(reason="disconnect"))

    assert (await desk.ended(item)).fin.failure.code is Code.CANCELLED


async def test_a_request_that_several_workers_died_on_is_given_up_here_too(desk, kit):
    worker = await desk.start()
    item = kit.item(kit.words(3))
    rid = item.request.rid
    lease = LeaseRecord(wid="decode-gone", attempt=3, nonce=b"n")
    await desk.bus.publish(subjects.run(kit.ING, rid, "lease"), encode(lease))
    await desk.bus.publish(subjects.dec(worker.wid, rid), encode(item))

    log = await desk.ended(item)

    assert (log.fin.failure.code, log.fin.attempts) == (Code.WORKER_CRASHED, 3)
    assert len(await desk.bus.read(subjects.DLQ, subjects.dead_letter("decode", rid))) == 1


async def test_a_model_that_is_not_served_here_ends_the_request(desk, kit):
    worker = await desk.start()

    log = await desk.ended(await desk.put(worker, model="another"))

    assert log.fin.failure.code is Code.MODEL_NOT_FOUND


async def test_an_item_that_cannot_be_read_ends_its_request(desk, kit):
    worker = await desk.start()
    rid = kit.item().request.rid
    await desk.bus.publish(subjects.run(kit.ING, rid, "req"), encode(kit.req()))
    await desk.bus.publish(subjects.dec(worker.wid, rid), b"\xc1 nonsense")

    log = await desk.ended(Tokenized(request=kit.item(rid=rid).request, prompt_ids=b"", accepted_ms=0))

    assert log.fin.failure.code is Code.INTERNAL
    assert await desk.is_queue_empty()
