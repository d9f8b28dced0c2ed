"""A prompt's blocks around decode: found and stored when it came straight here, left alone when prefill has done so."""

import msgspec
import pytest

from headrace.decode.run import is_worth_storing
from headrace.shared import serving, subjects
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.messages import encode

NUM_FULL = 16
"""Tokens of the one full block of the desk's prompt."""


class Watched(MemoryStore):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, keys):
        self.calls.append("get")
        return super().get(keys)

    def put(self, items):
        self.calls.append("put")
        return super().put(items)

    def count_prefix(self, keys):
        self.calls.append("count")
        return super().count_prefix(keys)


@pytest.fixture
def store(monkeypatch) -> Watched:
    store = Watched()
    monkeypatch.setattr(serving, "open_store", lambda *_: store)
    return store


async def test_a_prompt_that_came_straight_here_is_found_by_others_afterwards(desk, kit, store):
    first, second = await desk.start(), await desk.start()

    cold = await desk.ended(await desk.put(first, kit.words(3)))
    await desk.until(lambda: _has(store, "put"))
    warm = await desk.ended(await desk.put(second, kit.words(3)))

    assert (cold.fin.prompt.cached_tokens, warm.fin.prompt.cached_tokens) == (0, NUM_FULL)
    assert kit.text(warm) == kit.text(cold)
    assert store.calls == ["get", "put", "get"]


async def test_a_prompt_that_is_here_already_asks_the_store_nothing(desk, kit, store):
    worker = await desk.start()
    await desk.ended(await desk.put(worker, kit.words(3)))
    await desk.until(lambda: _has(store, "put"))
    store.calls.clear()

    again = await desk.ended(await desk.put(worker, kit.words(3)))

    assert again.fin.prompt.cached_tokens == NUM_FULL
    assert store.calls == []


async def test_what_prefill_could_not_store_is_not_looked_for(desk, kit, store):
    worker = await desk.start()
    item = msgspec.structs.replace(kit.item(kit.words(3)), cached=0)
    await desk.bus.publish(subjects.dec(worker.wid, item.request.rid), encode(item))

    await desk.ended(item)

    assert store.calls == []


@pytest.mark.parametrize(("rate", "stored"), [(0.0, True), (500.0, True), (5000.0, False)])
def test_only_prompts_that_take_a_while_are_stored(rate, stored):
    assert is_worth_storing(100, rate) is stored


async def _has(store: Watched, call: str) -> bool:
    return call in store.calls
