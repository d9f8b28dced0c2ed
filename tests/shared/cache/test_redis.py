"""The shared store when its server misbehaves: a miss within the budget, then silence, then recovery by itself."""

import time
from collections.abc import Callable

import pytest

from headrace.shared.cache.codec import frame, unframe

BUDGET_S = 0.25
SLACK_S = 0.25
"""What a busy machine may add."""
AT_ONCE_S = 0.05


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll with a deadline: a recovering server announces nothing."""
    give_up = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.live
def test_frozen_server_costs_one_budget_and_recovers(server, open_at, make_keys, meter, timed):
    store = open_at(server.url)
    keys = make_keys(3)
    store.put([(key, key.encode()) for key in keys])
    server.freeze()

    first, first_s = timed(lambda: store.get(keys))
    second, second_s = timed(lambda: store.get(keys))

    assert first == second == [None] * 3
    assert BUDGET_S * 0.9 < first_s < BUDGET_S + SLACK_S
    assert second_s < AT_ONCE_S
    assert not store.is_healthy()
    assert meter.cuts == ["timeout", "breaker"]

    server.thaw()
    wait_until(lambda: store.is_healthy() and store.get(keys[::-1]) == [key.encode() for key in keys[::-1]])
    assert store.get(keys) == [key.encode() for key in keys]
    assert meter.changes == [True, False]


@pytest.mark.live
@pytest.mark.parametrize("verb", ["put", "count_prefix", "ping"])
def test_every_verb_keeps_the_budget(server, open_at, make_keys, verb, timed):
    store = open_at(server.url)
    keys = make_keys(2)
    calls = {
        "put": lambda: store.put([(keys[0], bytes(4 << 20)), (keys[1], bytes(7 << 20))]),
        "count_prefix": lambda: store.count_prefix(keys),
        "ping": store.ping,
    }
    server.freeze()

    result, seconds = timed(calls[verb])

    assert not result
    assert seconds < BUDGET_S + 11 * 0.005 + SLACK_S
    assert not store.is_healthy()


@pytest.mark.live
def test_killed_server_is_a_miss_and_its_successor_is_found(server, open_at, make_keys, timed):
    store = open_at(server.url)
    keys = make_keys(2)
    store.put([(key, b"v") for key in keys])
    server.kill()

    result, seconds = timed(lambda: store.get(keys))
    assert result == [None, None]
    assert seconds < BUDGET_S
    assert store.put([(keys[0], b"v")]) == 0
    assert not store.ping()

    server.start()
    wait_until(store.ping)
    assert store.get(keys) == [None, None]
    assert store.put([(key, b"w") for key in keys]) == 2
    assert store.get(keys) == [b"w", b"w"]


@pytest.mark.live
def test_restart_between_two_calls_costs_nothing(server, open_at, make_keys, meter):
    """The old connection is found dead before it is used, so the breaker stays closed."""
    store = open_at(server.url)
    (key,) = make_keys(1)
    store.put([(key, b"v")])
    server.kill()
    server.start()

    assert store.put([(key, b"w")]) == 1
    assert store.get([key]) == [b"w"]
    assert meter.changes == []


@pytest.mark.live
def test_one_connection_serves_many_calls(server, open_at, make_keys):
    store = open_at(server.url)
    keys = make_keys(20)
    store.put([(key, b"v") for key in keys])
    for _ in range(20):
        store.get(keys)

    with server.client() as client:
        assert len(client.client_list()) == 2


@pytest.mark.live
@pytest.mark.parametrize(
    "harm",
    [
        lambda value, _: value[:-1] + bytes([value[-1] ^ 1]),
        lambda value, _: value[: len(value) // 2],
        lambda _, other: other,
    ],
    ids=["flipped bit", "cut", "value of another key"],
)
def test_harmed_value_is_refused(server, open_at, make_keys, harm):
    store = open_at(server.url)
    keys = make_keys(2)
    values = [frame(bytes([n]) * 5000, key, n, 16) for n, key in enumerate(keys)]
    store.put(list(zip(keys, values, strict=True)))
    with server.client() as client:
        client.set(keys[1], harm(*(b"".join(value) for value in values[::-1])))

    found = store.get(keys)

    assert unframe(found[0], keys[0], 0, 16) == bytes(5000)
    assert unframe(found[1], keys[1], 1, 16) is None


@pytest.mark.live
def test_eviction_leaves_a_usable_prefix(server, open_at, make_keys):
    store = open_at(server.url)
    keys = make_keys(40)
    store.put([(key, bytes(10_000)) for key in keys])
    with server.client() as client:
        client.delete(*keys[20:30])

    assert store.count_prefix(keys) == 20
    assert [value is not None for value in store.get(keys)] == [True] * 20 + [False] * 20


@pytest.mark.live
def test_flood_evicts_and_keeps_accepting(server, open_at, make_keys, meter):
    server.kill()
    server.start(maxmemory="8mb", **{"maxmemory-policy": "allkeys-lru"})
    store = open_at(server.url, budget_s=2.0)
    keys = make_keys(60)

    assert store.put([(key, bytes(300_000)) for key in keys]) == 60
    assert 0 <= store.count_prefix(keys) < 60
    assert None in store.get(keys)
    assert meter.changes == []


@pytest.mark.live
def test_full_server_refuses_without_opening_the_breaker(server, open_at, make_keys):
    server.kill()
    server.start(maxmemory="4mb", **{"maxmemory-policy": "noeviction"})
    store = open_at(server.url, budget_s=2.0)
    keys = make_keys(30)

    num_stored = store.put([(key, bytes(300_000)) for key in keys])

    assert 0 < num_stored < 30
    assert store.count_prefix(keys) == num_stored
    assert store.is_healthy()


@pytest.mark.live
def test_block_lives_longer_when_it_is_read(server, open_at, make_keys):
    store = open_at(server.url, ttl_s=1000)
    read, unread = make_keys(2)
    store.put([(read, b"v"), (unread, b"v")])
    with server.client() as client:
        assert 990 < client.ttl(read) <= 1000
        client.expire(read, 50)
        client.expire(unread, 50)

        store.get([read])
        store.count_prefix([unread])

        assert client.ttl(read) > 900
        assert client.ttl(unread) <= 50


@pytest.mark.live
def test_login_and_database_of_the_url_are_used(server, open_at, make_keys):
    with server.client() as client:
        client.config_set("requirepass", "sesame")
    (key,) = make_keys(1)

    assert open_at(f"unix://:sesame@{server.socket}?db=3").put([(key, b"v")]) == 1
    assert open_at(f"unix://:sesame@{server.socket}?db=3").get([key]) == [b"v"]
    assert open_at(f"unix://:sesame@{server.socket}").get([key]) == [None]
    assert not open_at(f"unix://:wrong@{server.socket}?db=3").ping()
