"""The memory store keeps to its byte limit and drops what was used least recently."""

from headrace.shared.cache.memory import MemoryStore


def test_least_recently_read_goes_first():
    store = MemoryStore(max_bytes=30)
    store.put([("a", bytes(10)), ("b", bytes(10)), ("c", bytes(10))])
    store.get(["a"])

    store.put([("d", bytes(10))])

    assert [store.count_prefix([key]) for key in "abcd"] == [1, 0, 1, 1]


def test_looking_keeps_nothing_alive():
    store = MemoryStore(max_bytes=20)
    store.put([("a", bytes(10)), ("b", bytes(10))])
    store.count_prefix(["a"])

    store.put([("c", bytes(10))])

    assert [store.count_prefix([key]) for key in "abc"] == [0, 1, 1]


def test_replacing_counts_once_and_too_large_is_refused():
    store = MemoryStore(max_bytes=20)
    for _ in range(5):
        store.put([("a", bytes(15))])

    assert store.put([("b", bytes(21))]) == 0
    assert store.count_prefix(["a"]) == 1
