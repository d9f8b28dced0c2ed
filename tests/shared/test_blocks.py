"""Blocks between workers: whatever is wrong with one, it and what follows it count as missing."""

from collections.abc import Sequence

import pytest

from headrace.shared.blocks import SharedBlocks
from headrace.shared.cache import BlockStore
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.config import Cache
from headrace.shared.messages import Deadlines, Request

IDS = list(range(40))
PAYLOADS = [bytes([n]) * 64 for n in range(5)]


def shared(
    store: BlockStore | None, *, fingerprint: str = "weights", form: str = "fp32", salt: str = ""
) -> SharedBlocks:
    return SharedBlocks(store, Cache(salt=salt), fingerprint, form, 8)


def request(**fields: object) -> Request:
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
    return Request(**{"rid": "r", "ing": "i", "model": "m", "deadlines": deadlines, **fields})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_what_was_put_is_found_and_comes_back(store: MemoryStore) -> None:
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)

    assert await blocks.put(keys, 0, PAYLOADS) == 5
    assert await blocks.num_stored(keys) == 5
    assert await blocks.fetch(keys, 1, 4) == PAYLOADS[1:4]


async def test_a_missing_block_ends_what_is_found(store: MemoryStore) -> None:
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)
    await blocks.put(keys, 0, PAYLOADS[:2])
    await blocks.put(keys, 3, PAYLOADS[3:])

    assert await blocks.num_stored(keys) == 2
    assert await blocks.fetch(keys, 0, 5) == PAYLOADS[:2]


@pytest.mark.parametrize("place", [0, 40, -1], ids=["magic", "header", "payload"])
async def test_a_flipped_bit_makes_a_block_missing(store: MemoryStore, place: int) -> None:
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)
    await blocks.put(keys, 0, PAYLOADS)
    value = bytearray(store.get(keys[:3])[2] or b"")
    value[place] ^= 1
    store.put([(keys[2], bytes(value))])

    assert await blocks.fetch(keys, 0, 5) == PAYLOADS[:2]
    assert await blocks.num_stored(keys) == 2
    await blocks.put(keys, 2, PAYLOADS[2:3])
    assert await blocks.fetch(keys, 0, 5) == PAYLOADS


async def test_a_block_under_another_key_is_missing(store: MemoryStore) -> None:
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)
    await blocks.put(keys, 0, PAYLOADS)
    store.put([(keys[1], store.get(keys)[2] or b"")])

    assert await blocks.fetch(keys, 0, 5) == PAYLOADS[:1]


async def test_nothing_is_shared_across_tenants_salts_weights_and_forms(store: MemoryStore) -> None:
    keys = shared(store).keys(request(tenant="a"), IDS)
    others = [
        shared(store).keys(request(tenant="b"), IDS),
        shared(store).keys(request(tenant="a", cache_salt="x"), IDS),
        shared(store, salt="x").keys(request(tenant="a"), IDS),
        shared(store, fingerprint="others").keys(request(tenant="a"), IDS),
        shared(store, form="int4").keys(request(tenant="a"), IDS),
    ]

    assert len({key for chain in (keys, *others) for key in chain}) == 5 * 6
    assert keys == shared(store).keys(request(tenant="a", rid="another"), IDS)


async def test_a_longer_prompt_shares_the_keys_of_its_beginning(store: MemoryStore) -> None:
    blocks = shared(store)

    assert blocks.keys(request(), [*IDS, 1, 2, 3])[:5] == blocks.keys(request(), IDS)


async def test_without_a_store_everything_is_missing() -> None:
    blocks = shared(None)
    keys = blocks.keys(request(), IDS)

    assert not blocks.is_healthy()
    assert await blocks.put(keys, 0, PAYLOADS) == 0
    assert await blocks.num_stored(keys) == 0
    assert await blocks.fetch(keys, 0, 5) == []


class Sick:
    """A store whose breaker is open: asking it would cost time."""

    def is_healthy(self) -> bool:
        return False

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked")


async def test_a_store_that_is_away_is_not_asked() -> None:
    blocks = shared(Sick())  # type: ignore[arg-type]
    keys = blocks.keys(request(), IDS)

    assert await blocks.put(keys, 0, PAYLOADS) == 0
    assert await blocks.num_stored(keys) == 0
    assert await blocks.fetch(keys, 0, 5) == []


async def test_an_empty_range_asks_nobody(store: MemoryStore) -> None:
    asked: list[Sequence[str]] = []
    store.get = lambda keys: asked.append(keys) or []  # type: ignore[method-assign, func-returns-value]
    blocks = shared(store)

    assert await blocks.fetch(blocks.keys(request(), IDS), 3, 3) == []
    assert await blocks.num_stored([]) == 0
    assert asked == []


async def test_what_is_published_is_stored_behind_the_callers_back(store: MemoryStore) -> None:
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)

    blocks.publish(keys, 0, PAYLOADS[:2])
    blocks.publish(keys, 2, PAYLOADS[2:])
    await blocks.settle()

    assert await blocks.fetch(keys, 0, 5) == PAYLOADS


async def test_more_than_can_be_on_its_way_is_dropped(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.shared.blocks._MOST_BEHIND_BYTES", 150)
    blocks = shared(store)
    keys = blocks.keys(request(), IDS)

    blocks.publish(keys, 0, PAYLOADS[:2])
    blocks.publish(keys, 2, PAYLOADS[2:])
    await blocks.settle()
    assert await blocks.num_stored(keys) == 2

    blocks.publish(keys, 2, PAYLOADS[2:4])
    await blocks.settle()
    assert await blocks.num_stored(keys) == 4


async def test_nothing_is_published_to_a_store_that_is_away() -> None:
    for store in (None, Sick()):
        blocks = shared(store)  # type: ignore[arg-type]
        blocks.publish(blocks.keys(request(), IDS), 0, PAYLOADS)
        await blocks.settle()


async def test_a_fetch_tells_its_price(store: MemoryStore) -> None:
    blocks = shared(store)
    before = blocks.price.seconds(0)

    await blocks.fetch(blocks.keys(request(), IDS), 0, 5)

    assert blocks.price.seconds(0) != before
