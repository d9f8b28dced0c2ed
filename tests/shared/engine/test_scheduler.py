"""The scheduler alone: integers in, plans out; the 'model' below generates the length of the sequence so far."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.shared.engine import SequenceSpec
from headrace.shared.engine.scheduler import Scheduler, share
from headrace.shared.engine.sequence import Sequence

BLOCK = 4


class Bench:
    """A scheduler with a pretended forward pass."""

    def __init__(self, num_blocks=64, step_tokens=16, max_batch=8):
        self.scheduler = Scheduler(num_blocks, block_tokens=BLOCK, step_tokens=step_tokens, max_batch=max_batch)
        self.imported = []
        self.tokens = {}
        self.computed = {}
        self.ended = {}

    def add(self, id, length=3, max_new=4, blocks=(), first_block=0, **fields):
        spec = SequenceSpec(id=id, prompt=range(length), max_new=max_new, **fields)
        sequence = Sequence(spec, block_tokens=BLOCK, max_context=256)
        sequence.bring(blocks, first_block)
        self.scheduler.add(sequence)
        return sequence

    def step(self):
        self.scheduler.admit(lambda block, payload: self.imported.append((block, payload)))
        plan = self.scheduler.plan()
        self.scheduler.check()
        done = [s for s, num in plan if num == s.num_pending and not s.is_prefill]
        outputs = self.scheduler.commit(plan, {s.id: [len(s.tokens)] for s in done})
        self.scheduler.check()
        for output in outputs:
            self.tokens.setdefault(output.id, []).extend(output.tokens)
            if output.cause:
                assert output.id not in self.ended
                self.ended[output.id] = output
        for sequence, num in plan:
            self.computed[sequence.id] = self.computed.get(sequence.id, 0) + num
        return {sequence.id: num for sequence, num in plan}

    def run(self, num_steps=1000, release=True):
        for _ in range(num_steps):
            if not self.scheduler.has_work():
                return
            self.step()
            for id in list(self.ended) if release else ():
                self.scheduler.release(id)
        raise AssertionError("no end")


def test_generated_rows_come_first_and_prompts_share_the_rest():
    bench = Bench(step_tokens=16)
    bench.add("running", length=3, max_new=9)
    bench.step()
    bench.add("prompt", length=40)

    assert bench.step() == {"running": 1, "prompt": 15}


def test_a_short_prompt_does_not_wait_behind_a_long_one():
    bench = Bench(num_blocks=600, step_tokens=64)
    bench.add("long", length=200)
    bench.step()
    for i in range(5):
        bench.add(f"short-{i}", length=6)

    bench.step()

    assert [len(bench.tokens[f"short-{i}"]) for i in range(5)] == [1] * 5
    assert bench.tokens["long"] == []


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones():
    bench = Bench(num_blocks=600, step_tokens=16, max_batch=64)
    bench.add("long", length=200, max_new=1)

    for i in range(60):
        bench.add(f"short-{i}", length=15, max_new=1)
        bench.step()
        for id in list(bench.ended):
            bench.scheduler.release(id)

    assert "long" in bench.ended


def test_generation_keeps_its_pace_while_prompts_keep_coming():
    """Each step of a running sequence gives a token, whatever arrives."""
    bench = Bench(num_blocks=600, step_tokens=16, max_batch=64)
    bench.add("running", length=3, max_new=40)
    bench.step()

    for i in range(30):
        bench.add(f"new-{i}", length=50, max_new=5)
        bench.step()

    assert len(bench.tokens["running"]) == 31


@pytest.mark.parametrize(
    ("budget", "pending", "shares"),
    [
        (16, [], []),
        (16, [100], [16]),
        (16, [5], [5]),
        (16, [100, 3, 100], [13, 3, 0]),
        (16, [100, 3, 50], [8, 3, 5]),
        (16, [2, 100, 100], [2, 14, 0]),
        (1, [100, 1], [1, 0]),
        (20, [100, 4, 4], [12, 4, 4]),
    ],
)
def test_half_of_the_budget_is_the_oldest_ones_the_rest_goes_to_the_shortest(budget, pending, shares):
    assert share(budget, pending) == shares


def test_no_more_than_max_batch_sequences_run():
    bench = Bench(max_batch=2, step_tokens=64)
    for id in "abc":
        bench.add(id, max_new=3)

    assert set(bench.step()) == {"a", "b"}
    bench.run()
    assert set(bench.ended) == {"a", "b", "c"}


def test_a_waiting_sequence_holds_no_blocks():
    bench = Bench(num_blocks=4)
    bench.add("a", length=12, max_new=2)
    bench.add("b", length=12, max_new=2, blocks=[b"x", b"y"])

    bench.step()

    pressure = bench.scheduler.pressure()
    assert (pressure.num_sequences, pressure.num_waiting, pressure.used_blocks) == (2, 1, 3)
    assert bench.imported == []


def test_what_a_waiting_sequence_brings_along_is_used_when_its_turn_comes():
    bench = Bench(num_blocks=4)
    bench.add("a", length=12, max_new=2)
    bench.add("b", length=12, max_new=2, blocks=[b"x", b"y"])

    bench.run()

    assert [payload for _, payload in bench.imported] == [b"x", b"y"]
    assert bench.ended["b"].num_cached == 8


def test_payloads_that_do_not_join_on_are_computed_instead():
    """The local blocks they were to follow may have been evicted in the meantime: a miss, not an error."""
    bench = Bench()
    bench.add("a", length=12, max_new=1, blocks=[b"y"], first_block=1)

    bench.run()

    assert bench.imported == []
    assert bench.computed["a"] == 12


def test_the_youngest_gives_its_blocks_back_and_loses_no_token():
    bench = Bench(num_blocks=5, step_tokens=32)
    bench.add("old", length=3, max_new=14)
    bench.add("young", length=3, max_new=14)

    bench.run()

    assert bench.tokens == {"old": list(range(3, 17)), "young": list(range(3, 17))}
    assert bench.computed["old"] == 16
    assert bench.computed["young"] > 16


def test_recomputing_samples_nothing_and_keeps_the_boundary_of_the_prompt():
    bench = Bench(num_blocks=5, step_tokens=8)
    bench.add("old", length=3, max_new=14)
    young = bench.add("young", length=3, max_new=14)

    bench.run()

    assert young.was_preempted
    assert young.num_prompt == 3
    assert young.num_generated == 14
    assert bench.ended["young"].num_computed == 3
    assert bench.ended["young"].num_cached == 0


def test_a_resumed_sequence_computes_its_tokens_and_samples_only_new_ones():
    bench = Bench(step_tokens=4)
    bench.add("a", length=3, max_new=8, generated=(3, 4, 5, 6, 7))

    bench.run()

    assert bench.tokens["a"] == [8, 9, 10]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"max_new": 2, "generated": (7, 8)}, "length"),
        ({"max_new": 9, "generated": (7, 8), "stop_ids": frozenset({8})}, "eos"),
        ({"length": 256, "max_new": 9}, "context"),
        ({"length": 3, "max_new": 0}, "length"),
    ],
)
def test_a_sequence_that_is_over_before_it_starts_says_so_in_the_next_step(fields, cause):
    bench = Bench()
    bench.add("a", **fields)

    assert bench.scheduler.has_work()
    assert bench.step() == {}
    assert (bench.ended["a"].cause, bench.tokens["a"]) == (cause, [])
    assert not bench.scheduler.has_work()


def test_prefill_computes_full_blocks_only():
    bench = Bench()
    bench.add("a", length=11, max_new=0)

    bench.run(release=False)

    assert (bench.computed["a"], bench.tokens["a"], bench.ended["a"].cause) == (8, [], "length")
    assert len(bench.scheduler.computed_blocks("a", 0, 2)) == 2


def test_a_key_is_found_only_once_its_block_is_computed():
    bench = Bench(step_tokens=3)
    bench.add("a", length=8, max_new=1, block_keys=("k0", "k1"))
    local = []

    while bench.scheduler.has_work():
        bench.step()
        local.append(bench.scheduler.num_local(["k0", "k1"]))

    assert local == [0, 1, 2]


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_a_full_hit_still_computes_the_last_token(length):
    bench = Bench()
    keys = tuple(f"k{i}" for i in range(length // BLOCK))
    bench.add("cold", length=length, max_new=2, block_keys=keys)
    bench.run()

    bench.add("warm", length=length, max_new=2, block_keys=keys)
    bench.run()

    num_found = (length - 1) // BLOCK * BLOCK
    assert bench.ended["warm"].num_cached == num_found
    assert bench.computed["warm"] == bench.computed["cold"] - num_found
    assert bench.tokens["warm"] == bench.tokens["cold"]


def test_equal_prompts_at_once_are_computed_once():
    """Whoever comes later takes each block over when it is published, and never before."""
    bench = Bench(num_blocks=600, step_tokens=8, max_batch=64)
    keys = tuple(f"k{i}" for i in range(24))

    for i in range(24):
        bench.add(f"s{i}", length=97, max_new=2, block_keys=keys)
    bench.run()

    assert all(tokens == [97, 98] for tokens in bench.tokens.values())
    assert sum(bench.computed.values()) == 96 + 24 * 2
    assert sum(output.num_cached for output in bench.ended.values()) == 23 * 96


def test_equal_prefills_at_once_all_end():
    bench = Bench(step_tokens=8)
    for id in "abc":
        bench.add(id, length=24, max_new=0, block_keys=tuple(f"k{i}" for i in range(6)))

    bench.run()

    assert {id: output.num_computed for id, output in bench.ended.items()} == {"a": 24, "b": 24, "c": 24}
    assert sum(bench.computed.values()) == 24


def test_partial_holders_do_not_block_each_other():
    """A pool just over one request's needs and four requests with a cached prefix: all of them finish."""
    bench = Bench(num_blocks=9, step_tokens=16)
    for i in range(4):
        bench.add(f"s{i}", length=20, max_new=14, block_keys=("k0", "k1"))

    bench.run()

    assert {id: len(tokens) for id, tokens in bench.tokens.items()} == {f"s{i}": 14 for i in range(4)}


def test_a_sequence_that_can_never_fit_is_refused_and_blocks_nobody():
    bench = Bench(num_blocks=32)

    with pytest.raises(ValueError, match="do not fit"):
        bench.add("huge", length=160)

    bench.add("small", length=5)
    bench.run()
    assert "small" in bench.ended


def test_an_id_in_use_is_refused():
    bench = Bench()
    bench.add("a")

    with pytest.raises(ValueError, match="in use"):
        bench.add("a")


def test_finished_sequences_that_hold_the_pool_leave_no_work_to_spin_on():
    bench = Bench(num_blocks=4)
    bench.add("done", length=12, max_new=2)
    bench.run(release=False)
    bench.add("next", length=12, max_new=2)

    assert not bench.scheduler.has_work()
    bench.scheduler.release("done")
    bench.run()
    assert "next" in bench.ended


def test_a_failed_sequence_is_never_computed_again():
    bench = Bench()
    bench.add("bad", max_new=9)
    bench.add("good", max_new=9)
    bench.step()

    bench.scheduler.fail("bad")

    assert set(bench.step()) == {"good"}
    bench.scheduler.release("bad")
    bench.run()
    assert bench.scheduler.pressure().used_blocks == 0


_SEQUENCES = st.fixed_dictionaries(
    {
        "length": st.integers(1, 30),
        "max_new": st.integers(0, 12),
        "prefix": st.integers(0, 3),
        "num_blocks": st.integers(0, 3),
    }
)
_EVENTS = st.one_of(
    _SEQUENCES, st.just("step"), st.just("step"), st.just("drop"), st.integers(0, 9).map(lambda n: ("release", n))
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_EVENTS, max_size=50), st.integers(11, 24), st.integers(1, 12), st.integers(1, 5))
def test_any_history_keeps_the_books_and_lets_everyone_finish(events, num_blocks, step_tokens, max_batch):
    """Adding, stepping, releasing in any order: the accounting holds, and who is not released gets all of its tokens."""
    bench = Bench(num_blocks, step_tokens, max_batch)
    alive = {}
    for number, event in enumerate(events):
        if isinstance(event, dict):
            id, length = f"s{number}", event["length"]
            keys = tuple(f"{event['prefix']}-{i}" for i in range(length // BLOCK))
            blocks = [b"x"] * min(event["num_blocks"], length // BLOCK)
            bench.add(id, length, event["max_new"], blocks=blocks, block_keys=keys)
            alive[id] = (length, event["max_new"])
        elif event == "step":
            bench.step()
        elif event == "drop":
            bench.scheduler.drop_cache()
        elif alive:
            id = sorted(alive)[event[1] % len(alive)]
            bench.scheduler.release(id)
            del alive[id]
        bench.scheduler.check()

    bench.run()

    for id, (length, max_new) in alive.items():
        assert bench.tokens[id] == list(range(length, length + max_new))
        bench.scheduler.release(id)
    pressure = bench.scheduler.pressure()
    assert (pressure.num_sequences, pressure.num_waiting, pressure.used_blocks) == (0, 0, 0)
    assert pressure.free_tokens == pressure.total_tokens
