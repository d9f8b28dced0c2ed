import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.engine.blocks import BlockPool


def test_allocated_blocks_are_distinct_and_come_back():
    pool = BlockPool(4)

    blocks = pool.allocate(4)

    assert sorted(blocks) == [0, 1, 2, 3]
    assert not pool.can_allocate(1)
    pool.release(blocks)
    assert (pool.num_free, pool.num_held) == (4, 0)


def test_a_keyed_block_outlives_its_holder_until_its_place_is_needed():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, "k")
    pool.release([block])

    assert pool.match(["k"]) == [block]
    assert pool.num_free == 2
    pool.allocate(2)
    assert pool.match(["k"]) == []


def test_the_least_recently_used_block_is_evicted_first():
    pool = BlockPool(3)
    for key in "abc":
        blocks = pool.allocate(1)
        pool.publish(blocks[0], key)
        pool.release(blocks)
    touched = pool.match(["a"])
    pool.acquire(touched)
    pool.release(touched)

    pool.allocate(1)

    assert [bool(pool.match([key])) for key in "abc"] == [True, False, True]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, "abc", strict=True):
        pool.publish(block, key)
    pool.release(blocks)

    pool.allocate(1)

    assert pool.match("abc") == blocks[:2]


def test_a_match_ends_at_the_first_unknown_key():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, "acd", strict=True):
        pool.publish(block, key)

    assert pool.match("abcd") == blocks[:1]


def test_the_first_block_of_a_key_stays_its_block():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, "k")

    pool.publish(second, "k")

    assert pool.lookup("k") == first
    pool.release([first, second])
    pool.check([])


def test_blocks_about_to_be_reused_do_not_count_as_free():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], "k")
    pool.release(blocks)

    assert pool.can_allocate(2)
    assert not pool.can_allocate(2, reusing=blocks)
    assert pool.can_allocate(1, reusing=blocks)


def test_dropping_the_cache_keeps_what_is_held():
    pool = BlockPool(2)
    held, cached = pool.allocate(2)
    pool.publish(held, "held")
    pool.publish(cached, "cached")
    pool.release([cached])

    pool.drop_cache()

    assert pool.match(["held"]) == [held]
    assert pool.match(["cached"]) == []
    pool.check([[held]])


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[1]], [[0, 0]]])
def test_the_check_sees_references_that_do_not_add_up(tables):
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]

    with pytest.raises(AssertionError):
        pool.check(tables)


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="not even one block"):
        BlockPool(0)


@given(st.lists(st.tuples(st.sampled_from(["take", "find", "give", "drop"]), st.integers(0, 9)), max_size=80))
def test_no_history_loses_or_doubles_a_block(history):
    """Whatever happens in whatever order: free + cached + held is the pool, and no content is shared by accident."""
    pool = BlockPool(5)
    tables: list[list[int]] = []
    for action, number in history:
        key = f"key-{number % 4}"
        if action == "take" and pool.can_allocate(number % 3):
            tables.append(pool.allocate(number % 3))
            if tables[-1]:
                pool.publish(tables[-1][0], key)
        elif action == "find" and (found := pool.match([key])):
            pool.acquire(found)
            tables.append(found)
        elif action == "give" and tables:
            pool.release(tables.pop(number % len(tables)))
        elif action == "drop":
            pool.drop_cache()
        pool.check(tables)

    for table in tables:
        pool.release(table)
    assert (pool.num_free, pool.num_held) == (5, 0)
