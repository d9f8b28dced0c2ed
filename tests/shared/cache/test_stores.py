"""One contract for every block store."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.shared.cache import BlockStore
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.cache.redis import open_store
from headrace.shared.config import Cache


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.live)])
def store(request) -> BlockStore:
    if request.param == "memory":
        made = MemoryStore()
    else:
        made = open_store(Cache(url=request.getfixturevalue("valkey_url"), budget_s=2.0))
    yield made
    made.close()


def test_put_count_get_agree(store, make_keys):
    keys = make_keys(3)
    assert store.count_prefix(keys) == 0

    assert store.put([(key, key.encode()) for key in keys]) == 3

    assert store.count_prefix(keys) == 3
    assert store.get(keys) == [key.encode() for key in keys]


def test_order_holds_over_many_round_trips(store, make_keys):
    keys = make_keys(300)
    store.put([(key, bytes([n % 256]) * 50) for n, key in enumerate(keys)])

    assert store.count_prefix(keys) == 300
    assert store.get(keys) == [bytes([n % 256]) * 50 for n in range(300)]


@pytest.mark.parametrize("hole", [0, 3, 7, 8, 15, 19])
def test_nothing_behind_a_hole_is_given(store, make_keys, hole):
    keys = make_keys(20)
    store.put([(key, b"v") for place, key in enumerate(keys) if place != hole])

    assert store.get(keys) == [b"v"] * hole + [None] * (20 - hole)
    assert store.count_prefix(keys) == hole


def test_values_are_bytes_of_any_content_and_size(store, make_keys):
    keys = make_keys(4)
    values = [b"", b"\r\n$-1\r\n\x00\xff", bytes(9 << 20), b"last"]

    assert store.put(list(zip(keys, values, strict=True))) == 4
    assert store.get(keys) == values


def test_what_is_discarded_is_gone_and_can_be_stored_again(store, make_keys):
    keys = make_keys(3)
    store.put([(key, b"v") for key in keys])

    store.discard(keys[1])
    store.discard("kv:nobody")

    assert store.get(keys) == [b"v", None, None]
    assert store.put([(keys[1], b"new")]) == 1
    assert store.get(keys) == [b"v", b"new", b"v"]


def test_put_again_replaces(store, make_keys):
    (key,) = make_keys(1)
    store.put([(key, b"one")])
    store.put([(key, b"two")])

    assert store.get([key]) == [b"two"]


def test_nothing_asked_is_nothing_given(store):
    assert (store.get([]), store.put([]), store.count_prefix([])) == ([], 0, 0)


def test_threads_get_their_own_values(store, make_keys):
    keys = make_keys(64)
    store.put([(key, key.encode() * 500) for key in keys])

    def work(place: int) -> bool:
        mine = keys[place : place + 1]
        return all(store.get(mine) == [mine[0].encode() * 500] for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_open_store_is_healthy_and_a_closed_one_only_misses(store, make_keys):
    keys = make_keys(2)
    store.put([(keys[0], b"v")])
    assert store.is_healthy()
    assert store.ping()

    store.close()
    store.close()

    assert not store.is_healthy()
    assert not store.ping()
    assert store.get(keys) == [None, None]
    assert store.put([(keys[1], b"v")]) == 0
    assert store.count_prefix(keys) == 0
