"""The scheduler alone: who computes how much in a step, who waits, who is preempted. No tensors, no model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BLOCK = 4


def test_generated_rows_come_first_and_prompts_share_the_rest(make_bench):
    bench = make_bench(step_tokens=16)
    bench.add("running", length=3, max_new=9)
    bench.step()
    bench.add("prompt", length=40)

    assert bench.step() == {"running": 1, "prompt": 15}


def test_a_short_prompt_does_not_wait_behind_a_long_one(make_bench):
    bench = make_bench(num_blocks=600, step_tokens=64)
    bench.add("long", length=200)
    bench.step()
    for i in range(5):
        bench.add(f"short-{i}", length=6)

    bench.step()

    assert [len(bench.tokens[f"short-{i}"]) for i in range(5)] == [1] * 5
    assert bench.tokens["long"] == []


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones(make_bench):
    bench = make_bench(num_blocks=600, step_tokens=16, max_batch=64)
    bench.add("long", length=200, max_new=1)

    for i in range(60):
        bench.add(f"short-{i}", length=15, max_new=1)
        bench.step()
        for name in list(bench.ended):
            bench.scheduler.release(name)

    assert "long" in bench.ended


def test_generation_keeps_its_pace_while_prompts_keep_coming(make_bench):
    """Each step of a running sequence gives a token, whatever arrives."""
    bench = make_bench(num_blocks=600, step_tokens=16, max_batch=64)
    bench.add("running", length=3, max_new=40)
    bench.step()

    for i in range(30):
        bench.add(f"new-{i}", length=50, max_new=5)
        bench.step()

    assert len(bench.tokens["running"]) == 31


def test_no_more_than_max_batch_sequences_run(make_bench):
    bench = make_bench(max_batch=2, step_tokens=64)
    for name in "abc":
        bench.add(name, max_new=3)

    assert set(bench.step()) == {"a", "b"}
    bench.run()
    assert set(bench.ended) == {"a", "b", "c"}


def test_a_waiting_sequence_holds_no_blocks(make_bench):
    bench = make_bench(num_blocks=4)
    bench.add("a", length=12, max_new=2)
    bench.add("b", length=12, max_new=2, blocks=[b"x", b"y"])

    bench.step()

    pressure = bench.scheduler.pressure()
    assert (pressure.num_sequences, pressure.num_waiting, pressure.used_blocks) == (2, 1, 3)
    assert bench.imported == []


def test_the_youngest_gives_its_blocks_back_and_loses_no_token(make_bench):
    bench = make_bench(num_blocks=5, step_tokens=32)
    bench.add("old", length=3, max_new=14)
    bench.add("young", length=3, max_new=14)

    bench.run()

    assert bench.tokens == {"old": list(range(3, 17)), "young": list(range(3, 17))}
    assert bench.computed["old"] == 16
    assert bench.computed["young"] > 16


def test_recomputing_samples_nothing_and_keeps_the_boundary_of_the_prompt(make_bench):
    bench = make_bench(num_blocks=5, step_tokens=8)
    bench.add("old", length=3, max_new=14)
    young = bench.add("young", length=3, max_new=14)

    bench.run()

    assert young.was_preempted
    assert young.num_prompt == 3
    assert young.num_generated == 14
    assert bench.ended["young"].num_computed == 3
    assert bench.ended["young"].num_cached == 0


def test_a_resumed_sequence_computes_its_tokens_and_samples_only_new_ones(make_bench):
    bench = make_bench(step_tokens=4)
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
def test_a_sequence_that_is_over_before_it_starts_says_so_in_the_next_step(make_bench, fields, cause):
    bench = make_bench()
    bench.add("a", **fields)

    assert bench.scheduler.has_work()
    assert bench.step() == {}
    assert (bench.ended["a"].cause, bench.tokens["a"]) == (cause, [])
    assert not bench.scheduler.has_work()


def test_prefill_computes_full_blocks_only(make_bench):
    bench = make_bench()
    bench.add("a", length=11, max_new=0)

    bench.run(release=False)

    assert (bench.computed["a"], bench.tokens["a"], bench.ended["a"].cause) == (8, [], "length")
    assert len(bench.scheduler.computed_blocks("a", 0, 2)) == 2


def test_what_a_preempted_sequence_finds_of_its_own_is_not_reported_as_cached(make_bench):
    bench = make_bench(num_blocks=6, step_tokens=32)
    bench.add("old", length=3, max_new=12)
    young = bench.add("young", length=9, max_new=8, block_keys=("k0", "k1"))

    bench.run()

    assert young.was_preempted
    assert bench.computed["young"] < 9 + 7 + 9
    assert bench.ended["young"].num_cached == 0


def test_who_was_preempted_goes_on_before_later_arrivals(make_bench):
    bench = make_bench(num_blocks=5, step_tokens=32, max_batch=2)
    for name in ("old", "young", "late"):
        bench.add(name, length=3, max_new=14)

    while "young" not in bench.ended:
        bench.step()
        bench.scheduler.release("old" if "old" in bench.ended else "")
        running = [sequence.id for sequence in bench.scheduler.running]
        assert "young" in [*running, *bench.ended] or "late" not in running


def test_a_sequence_that_can_never_fit_is_refused_and_blocks_nobody(make_bench):
    bench = make_bench(num_blocks=32)

    with pytest.raises(ValueError, match="do not fit"):
        bench.add("huge", length=160)

    bench.add("small", length=5)
    bench.run()
    assert "small" in bench.ended


def test_an_id_in_use_is_refused(make_bench):
    bench = make_bench()
    bench.add("a")

    with pytest.raises(ValueError, match="in use"):
        bench.add("a")


def test_finished_sequences_that_hold_the_pool_leave_no_work_to_spin_on(make_bench):
    bench = make_bench(num_blocks=4)
    bench.add("done", length=12, max_new=2)
    bench.run(release=False)
    bench.add("next", length=12, max_new=2)

    assert not bench.scheduler.has_work()
    bench.scheduler.release("done")
    bench.run()
    assert "next" in bench.ended


def test_a_failed_sequence_is_never_computed_again(make_bench):
    bench = make_bench()
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
def test_any_history_keeps_the_books_and_lets_everyone_finish(make_bench, events, num_blocks, step_tokens, max_batch):
    """Adding, stepping, releasing in any order: the books balance, and who is not released gets all of its tokens."""
    bench = make_bench(num_blocks, step_tokens, max_batch)
    alive = {}
    for number, event in enumerate(events):
        if isinstance(event, dict):
            name, length = f"s{number}", event["length"]
            keys = tuple(f"{event['prefix']}-{i}" for i in range(length // BLOCK))
            blocks = [b"x"] * min(event["num_blocks"], length // BLOCK)
            bench.add(name, length, event["max_new"], blocks=blocks, block_keys=keys)
            alive[name] = (length, event["max_new"])
        elif event == "step":
            bench.step()
        elif event == "drop":
            bench.scheduler.drop_cache()
        elif alive:
            name = sorted(alive)[event[1] % len(alive)]
            bench.scheduler.release(name)
            del alive[name]
        bench.scheduler.check()

    bench.run()

    for name, (length, max_new) in alive.items():
        assert bench.tokens[name] == list(range(length, length + max_new))
        bench.scheduler.release(name)
    pressure = bench.scheduler.pressure()
    assert (pressure.num_sequences, pressure.num_waiting, pressure.used_blocks) == (0, 0, 0)
    assert pressure.free_tokens == pressure.total_tokens
