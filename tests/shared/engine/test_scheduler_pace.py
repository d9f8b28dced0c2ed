"""The scheduler on an engine whose steps take time: gaps in streams stay short, and nobody starves."""

from hypothesis import given, settings
from hypothesis import strategies as st

ROW_S = 0.001
PROMPT_TOKEN_S = 0.0005
MANY_BLOCKS = 4000


def timed(bench):
    """A bench whose steps take as long as a real engine's."""
    bench.row_s, bench.prompt_token_s = ROW_S, PROMPT_TOKEN_S
    return bench


def warm(bench):
    """Steps of both kinds have been measured; nobody runs."""
    for name, length, max_new in (("prompt", 64, 0), ("rows", 3, 8)):
        bench.add(name, length=length, max_new=max_new)
        bench.run()
    return bench


def test_a_long_prompt_hardly_slows_running_streams(make_bench):
    bench = warm(timed(make_bench(MANY_BLOCKS, step_tokens=256, max_batch=64)))
    for i in range(16):
        bench.add(f"stream-{i}", length=3, max_new=100)
    for _ in range(3):
        bench.step()
    bench.add("long", length=250, max_new=1)
    gaps = []

    while "long" not in bench.ended:
        began = bench.now
        assert {f"stream-{i}" for i in range(16)} <= bench.step().keys()
        gaps.append(bench.now - began)

    assert max(gaps) <= 3 * 16 * ROW_S
    assert len(gaps) < 20


def test_a_short_prompt_behind_a_long_one_waits_little(make_bench):
    bench = warm(timed(make_bench(MANY_BLOCKS, step_tokens=256, max_batch=64)))
    bench.add("idle", length=100, max_new=1)
    began = bench.now
    bench.run()
    idle_s = bench.now - began
    for i in range(28):
        bench.add(f"long-{i}", length=250, max_new=1)
    bench.step()
    bench.add("short", length=100, max_new=1)
    began = bench.now

    while "short" not in bench.ended:
        bench.step()

    assert bench.now - began <= 3 * idle_s


def test_what_is_brought_along_is_written_in_portions(make_bench):
    """Running streams get their tokens in between."""
    bench = make_bench(MANY_BLOCKS, step_tokens=64, max_batch=8)
    bench.add("stream", length=3, max_new=50)
    bench.step()
    bench.add("brought", length=240, max_new=1, blocks=[b"x"] * 60)
    bench.add("more", length=240, max_new=1, blocks=[b"y"] * 60)

    assert "stream" in bench.step()
    assert len(bench.imported) == 64
    assert "stream" in bench.step()
    assert len(bench.imported) == 59 * 2

    bench.run()
    assert (bench.ended["brought"].num_cached, bench.ended["more"].num_cached) == (236, 236)
    assert bench.computed["brought"] == bench.computed["more"] == 4


def test_equal_prompts_that_bring_the_same_blocks_write_them_once(make_bench):
    bench = make_bench(step_tokens=64)
    for name in "ab":
        bench.add(name, length=12, max_new=1, blocks=[b"x", b"y"], block_keys=("k0", "k1", "k2"))

    bench.run()

    assert len(bench.imported) == 2
    assert [bench.ended[name].num_cached for name in "ab"] == [8, 8]


def test_who_is_preempted_amid_its_imports_brings_the_rest_again(make_bench):
    bench = make_bench(num_blocks=66, step_tokens=64)
    bench.add("old", length=3, max_new=12)
    bench.step()
    young = bench.add("young", length=252, max_new=1, blocks=[b"x"] * 62)
    bench.run()

    assert bench.tokens["old"] == list(range(3, 15))
    assert bench.tokens["young"] == [252]
    assert young.num_cached <= 248


def test_the_oldest_prompt_ends_however_many_shorter_ones_come(make_bench):
    bench = warm(timed(make_bench(MANY_BLOCKS, step_tokens=256, max_batch=64)))
    bench.add("long", length=250, max_new=1)

    for i in range(40):
        bench.add(f"short-{i}", length=200, max_new=1)
        bench.step()
        for name in list(bench.ended):
            bench.scheduler.release(name)

    assert "long" in bench.ended


_ARRIVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 250), st.integers(0, 20)), min_size=1, max_size=25)


@settings(max_examples=100, deadline=None)
@given(_ARRIVALS, st.integers(70, 400), st.integers(8, 256), st.floats(0.00001, 0.01), st.floats(0.00001, 0.01))
def test_under_any_load_at_any_pace_all_end_and_each_step_keeps_its_budget(
    make_bench, arrivals, num_blocks, step_tokens, row_s, prompt_token_s
):
    """Everybody gets all tokens, the oldest running one advances in each step, and no step exceeds its limit."""
    bench = make_bench(num_blocks, step_tokens, max_batch=16)
    bench.row_s, bench.prompt_token_s = row_s, prompt_token_s
    for number, (num_steps, length, max_new) in enumerate(arrivals):
        bench.add(f"s{number}", length=length, max_new=max_new)
        for _ in range(num_steps):
            oldest = bench.scheduler.running[:1]
            done = bench.step()
            assert sum(done.values()) <= step_tokens
            assert all(sequence.id in done for sequence in oldest)
        for name in bench.ended:
            bench.scheduler.release(name)
    bench.run(num_steps=5000)

    for number, (_, length, max_new) in enumerate(arrivals):
        assert bench.tokens[f"s{number}"] == list(range(length, length + min(max_new, 256 - length)))
        bench.scheduler.release(f"s{number}")
    assert bench.scheduler.pressure().used_blocks == 0
    assert bench.scheduler.pressure().prompt_tokens == 0
