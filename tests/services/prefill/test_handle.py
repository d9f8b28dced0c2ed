"""One prompt: what is stored is used, what is missing is computed, and no trouble on the way costs the request."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.prefill.handle import prefill
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.engine import SequenceSpec, StepError
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.packing import unpack_ids

BLOCK = 16


def going() -> asyncio.Event:
    """A request that nobody cancels."""
    return asyncio.Event()


def keys_of(served, item) -> list[str]:
    return served.blocks.keys(item.request, unpack_ids(item.prompt_ids))


async def is_free(served) -> bool:
    """Nothing of any sequence is left in the engine."""
    return await served.driver.call(lambda engine: engine.pressure().num_sequences) == 0 and not served.driver.num_sinks


class Counting:
    """A store that counts what it is given, and can be told to fail or to tell."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.num_put = 0
        self.refuse_after: int | None = None
        self.on_put = lambda: None

    def put(self, items: Sequence[tuple[str, bytes]]) -> int:
        if self.refuse_after is not None and self.num_put >= self.refuse_after:
            return 0
        self.num_put += len(items)
        self.on_put()
        return self._store.put(items)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(1, 0), (BLOCK - 1, 0), (BLOCK, 1), (BLOCK + 1, 1), (40 * BLOCK + 3, 40)]
)
async def test_every_full_block_of_a_new_prompt_is_stored(serve, store, prompt, num_tokens, num_blocks):
    served = serve(store)
    item = prompt(num_tokens)

    done = await prefill(item, served, going())

    assert (done.prefilled, done.cached) == (num_blocks * BLOCK, 0)
    assert store.count_prefix(keys_of(served, item)) == num_blocks
    assert await is_free(served)


async def test_a_prompt_whose_blocks_are_all_stored_computes_nothing(serve, store, prompt):
    await prefill(prompt(100), serve(store), going())
    fresh = serve(store)
    computed = []

    class Watched(ScriptedEngine):
        def add(self, *args: object) -> None:
            computed.append(args)

    fresh.driver._engine.__class__ = Watched
    done = await prefill(prompt(100), fresh, going())

    assert (done.prefilled, done.cached) == (96, 96)
    assert computed == []


async def test_a_longer_prompt_starts_from_the_stored_blocks(serve, store, prompt):
    await prefill(prompt(4 * BLOCK), serve(store), going())
    counting = Counting(store)

    done = await prefill(prompt(10 * BLOCK), serve(counting), going())

    assert (done.prefilled, done.cached) == (10 * BLOCK, 4 * BLOCK)
    assert counting.num_put == 6


async def test_blocks_of_another_tenant_are_not_seen(serve, store, prompt):
    await prefill(prompt(4 * BLOCK, tenant="a"), serve(store), going())

    done = await prefill(prompt(4 * BLOCK, tenant="b"), serve(store), going())

    assert done.cached == 0


async def test_a_block_that_does_not_fit_is_computed_instead(serve, store, prompt):
    """Right frame, wrong content: only the engine can tell."""
    served = serve(store)
    item = prompt(4 * BLOCK)
    keys = keys_of(served, item)
    await served.blocks.put(keys, 0, [b"wrong" * 10])

    done = await prefill(item, served, going())

    assert done.cached == 0
    assert await served.blocks.fetch(keys, 1, 4) != []
    assert await is_free(served)


async def test_a_store_that_fails_in_the_middle_keeps_what_it_has(serve, store, prompt):
    counting = Counting(store)
    counting.refuse_after = 16
    served = serve(counting)
    item = prompt(40 * BLOCK)

    done = await prefill(item, served, going())

    assert (done.prefilled, done.cached) == (16 * BLOCK, 0)
    assert store.count_prefix(keys_of(served, item)) == 16
    assert await is_free(served)


async def test_without_a_store_the_request_just_goes_on(serve, prompt):
    done = await prefill(prompt(100), serve(None), going())

    assert (done.prefilled, done.cached) == (0, 0)


async def test_a_cancel_in_the_middle_stops_after_the_group_at_hand(serve, store, prompt):
    counting = Counting(store)
    cancelled, loop = asyncio.Event(), asyncio.get_running_loop()
    counting.on_put = lambda: loop.call_soon_threadsafe(cancelled.set)
    served = serve(counting)

    done = await prefill(prompt(60 * BLOCK), served, cancelled)

    assert done.prefilled == 16 * BLOCK
    assert counting.num_put == 16
    assert await is_free(served)


async def test_a_cancel_is_heard_while_the_engine_says_nothing(serve, store, prompt):
    """The prompt waits for room that another sequence holds."""
    served = serve(store, kv_tokens=4 * BLOCK, max_context=4 * BLOCK)
    held = SequenceSpec(id="held", prompt=list(range(4 * BLOCK)), max_new=0)
    computed = asyncio.Event()
    await served.driver.add(held, lambda _output: computed.set())
    await computed.wait()  # finished, and held until it is released
    cancelled = asyncio.Event()
    computing = asyncio.create_task(prefill(prompt(3 * BLOCK), served, cancelled))
    while await served.driver.call(lambda engine: engine.pressure().num_waiting) == 0:
        pass  # each call is a turn of the engine's thread

    cancelled.set()

    async with asyncio.timeout(2):
        assert (await computing).prefilled == 0
    served.driver.release("held")
    assert await is_free(served)


async def test_a_prompt_the_engine_refuses_goes_on_uncomputed(serve, store, prompt):
    served = serve(store, kv_tokens=4 * BLOCK, max_context=4 * BLOCK)

    done = await prefill(prompt(20 * BLOCK), served, going())

    assert (done.prefilled, done.cached) == (0, 0)
    assert await is_free(served)


async def test_a_prompt_that_breaks_its_step_goes_on_uncomputed(serve, store, prompt):
    served = serve(store)

    class Breaking(ScriptedEngine):
        def step(self) -> list:
            (sequence,) = self._scheduler.running
            self._scheduler.fail(sequence.id)
            raise StepError(sequence.id, "numbers")

    served.driver._engine.__class__ = Breaking
    done = await prefill(prompt(4 * BLOCK), served, going())

    assert (done.prefilled, done.cached) == (0, 0)
    assert await is_free(served)


async def test_a_handler_that_is_stopped_leaves_nothing_in_the_engine(serve, store, prompt):
    """Stopped while its blocks are on the way, as by a process that ends."""
    counting = Counting(store)
    storing, loop = asyncio.Event(), asyncio.get_running_loop()
    counting.on_put = lambda: loop.call_soon_threadsafe(storing.set)
    served = serve(counting)
    computing = asyncio.create_task(prefill(prompt(60 * BLOCK), served, going()))
    await storing.wait()

    computing.cancel()
    await asyncio.gather(computing, return_exceptions=True)

    assert await is_free(served)
