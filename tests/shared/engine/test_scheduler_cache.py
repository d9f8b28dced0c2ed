"""The scheduler and its pool: what is found, brought along, taken over and evicted."""

import pytest

BLOCK = 4


def test_what_a_waiting_sequence_brings_along_is_used_when_its_turn_comes(make_bench):
    bench = make_bench(num_blocks=4)
    bench.add("a", length=12, max_new=2)
    bench.add("b", length=12, max_new=2, blocks=[b"x", b"y"])

    bench.run()

    assert [payload for _, payload in bench.imported] == [b"x", b"y"]
    assert bench.ended["b"].num_cached == 8


def test_payloads_that_do_not_join_on_are_computed_instead(make_bench):
    """The local blocks they were to follow may have been evicted in the meantime: a miss, not an error."""
    bench = make_bench()
    bench.add("a", length=12, max_new=1, blocks=[b"y"], first_block=1)

    bench.run()

    assert bench.imported == []
    assert bench.computed["a"] == 12


def test_a_key_is_found_only_once_its_block_is_computed(make_bench):
    bench = make_bench(step_tokens=3)
    bench.add("a", length=8, max_new=1, block_keys=("k0", "k1"))
    local = []

    while bench.scheduler.has_work():
        bench.step()
        local.append(bench.scheduler.num_local(["k0", "k1"]))

    assert local == [0, 1, 2]


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_a_full_hit_still_computes_the_last_token(make_bench, length):
    bench = make_bench()
    keys = tuple(f"k{i}" for i in range(length // BLOCK))
    bench.add("cold", length=length, max_new=2, block_keys=keys)
    bench.run()

    bench.add("warm", length=length, max_new=2, block_keys=keys)
    bench.run()

    num_found = (length - 1) // BLOCK * BLOCK
    assert bench.ended["warm"].num_cached == num_found
    assert bench.computed["warm"] == bench.computed["cold"] - num_found
    assert bench.tokens["warm"] == bench.tokens["cold"]


def test_found_blocks_are_not_evicted_to_make_room_for_the_rest(make_bench):
    """The cached prefix is the oldest thing in the pool when its reader needs every other block."""
    bench = make_bench(num_blocks=6)
    bench.add("prefix", length=8, max_new=0, block_keys=("k0", "k1"))
    bench.run()
    bench.add("other", length=16, max_new=0, block_keys=("x0", "x1", "x2", "x3"))
    bench.run()

    bench.add("reader", length=24, max_new=0, block_keys=("k0", "k1", "k2", "k3", "k4", "k5"))
    bench.run()

    assert bench.ended["reader"].num_cached == 8
    assert bench.computed["reader"] == 16


def test_blocks_to_be_found_do_not_count_as_room(make_bench):
    bench = make_bench(num_blocks=6)
    bench.add("prefix", length=8, max_new=0, block_keys=("k0", "k1"))
    bench.run()
    bench.add("running", length=6, max_new=3)
    bench.step()

    bench.add("reader", length=20, max_new=0, block_keys=("k0", "k1"))
    bench.step()

    assert bench.scheduler.pressure().num_waiting == 1
    bench.run()
    assert bench.ended["reader"].num_cached == 8


def test_equal_prompts_at_once_are_computed_once(make_bench):
    """Whoever comes later takes each block over when it is published, and never before."""
    bench = make_bench(num_blocks=600, step_tokens=8, max_batch=64)
    keys = tuple(f"k{i}" for i in range(24))

    for i in range(24):
        bench.add(f"s{i}", length=97, max_new=2, block_keys=keys)
    bench.run()

    assert all(tokens == [97, 98] for tokens in bench.tokens.values())
    assert sum(bench.computed.values()) == 96 + 24 * 2
    assert sum(output.num_cached for output in bench.ended.values()) == 23 * 96


def test_equal_prefills_at_once_all_end(make_bench):
    bench = make_bench(step_tokens=8)
    for name in "abc":
        bench.add(name, length=24, max_new=0, block_keys=tuple(f"k{i}" for i in range(6)))

    bench.run()

    assert {name: output.num_computed for name, output in bench.ended.items()} == {"a": 24, "b": 24, "c": 24}
    assert sum(bench.computed.values()) == 24


def test_partial_holders_do_not_block_each_other(make_bench):
    """A pool just over one request's needs and four requests with a cached prefix: all of them finish."""
    bench = make_bench(num_blocks=9, step_tokens=16)
    for i in range(4):
        bench.add(f"s{i}", length=20, max_new=14, block_keys=("k0", "k1"))

    bench.run()

    assert {name: len(tokens) for name, tokens in bench.tokens.items()} == {f"s{i}": 14 for i in range(4)}
