"""Faults between the stages: whatever is killed, drained, restarted or slow, each request ends once and whole."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.shared import serving, subjects
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.messages import Script, ScriptStep
from headrace.shared.runlog import RunLog

Read = tuple[Callable[[RunLog], str], Callable[[RunLog], list[int]]]
ING = "ingress-test"
ALL = ("router", "tokenize", "prefill", "decode")
LONG = "a long prompt that goes through prefill. " * 20


def words(num: int, pause_ms: int = 0) -> Script:
    steps = []
    for n in range(num):
        steps += [ScriptStep(text=f"w{n} "), ScriptStep(pause_ms=pause_ms)]
    return Script(choices=((*steps, ScriptStep(eos=True)),))


def text(num: int) -> str:
    return "".join(f"w{n} " for n in range(num))


async def assert_whole(plant: Any, read: Read, rid: str, num: int) -> None:
    """One end, the whole text, and nothing in the log that was written under an older lease."""
    log = await plant.ended(rid, timeout_s=30)
    assert log.fin.failure is None
    assert read[0](log) == text(num)
    assert log.fin.choices[0].n == len(read[1](log)) == num + 1
    records = await plant.bus.read(subjects.RUN, subjects.run(ING, rid, ">"))
    kinds = [subjects.run_parts(record.subject)[2] for record in records]
    assert kinds.count("fin") == 1
    assert kinds[-1] == "fin"


async def emptied(plant: Any) -> None:
    """No item is left in any queue, and none was given up."""

    async def is_empty() -> bool:
        return await plant.num_queued() == 0

    await plant.until(is_empty)
    assert await plant.bus.read(subjects.DLQ, "dlq.>") == []


class GatedStore(MemoryStore):
    """A store shared by all workers, in which the writing of blocks can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.is_putting = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def put(self, items: Sequence[tuple[str, bytes]]) -> int:
        self.is_putting.set()
        self.go_on.wait()
        return super().put(items)

    def close(self) -> None:
        """It outlives its users."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> GatedStore:
    store = GatedStore()
    monkeypatch.setattr(serving, "open_store", lambda *_: store)
    return store


async def test_a_long_prompt_goes_through_prefill_and_its_blocks_are_used(
    plant: Any, read: Read, store: GatedStore
) -> None:
    await plant.start(*ALL)
    first = await plant.submit(words(3), prompt=LONG)
    await assert_whole(plant, read, first, 3)
    assert store.is_putting.is_set()
    again = await plant.submit(words(3), prompt=LONG)
    await assert_whole(plant, read, again, 3)

    assert (await plant.log(first)).fin.prompt.cached_tokens == 0
    assert (await plant.log(again)).fin.prompt.cached_tokens == len(LONG) // 16 * 16
    await emptied(plant)


async def test_a_prefill_worker_killed_at_work_is_replaced(plant: Any, read: Read, store: GatedStore) -> None:
    _, _, prefill, _ = await plant.start(*ALL)
    store.go_on.clear()
    rid = await plant.submit(words(3), prompt=LONG)
    assert await asyncio.to_thread(store.is_putting.wait, 10)
    await plant.kill(prefill)
    store.go_on.set()
    await plant.start("prefill")

    await assert_whole(plant, read, rid, 3)
    await emptied(plant)


async def test_a_prefill_worker_killed_with_no_other_left_is_gone_without(
    plant: Any, read: Read, store: GatedStore
) -> None:
    _, _, prefill, _ = await plant.start(*ALL)
    store.go_on.clear()
    rid = await plant.submit(words(3), prompt=LONG)
    assert await asyncio.to_thread(store.is_putting.wait, 10)
    await plant.kill(prefill)
    store.go_on.set()

    await assert_whole(plant, read, rid, 3)
    await emptied(plant)


async def test_a_server_that_restarts_in_mid_stream_forks_nothing(plant: Any, read: Read) -> None:
    """Deliveries are forgotten: everything held is handed out a second time."""
    await plant.start(*ALL, "decode")
    rids = [await plant.submit(words(10, pause_ms=40)) for _ in range(8)]

    async def all_began() -> bool:
        return all([bool((await plant.log(rid)).toks) for rid in rids])

    await plant.until(all_began)
    await plant.server.restart()

    for rid in rids:
        await assert_whole(plant, read, rid, 10)
    await emptied(plant)


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_lost_while_workers_come_and_go(plant: Any, read: Read, seed: int) -> None:
    rng = random.Random(seed)
    processes = await plant.start(*ALL, "decode", "decode", "router")
    rids = []
    for _ in range(6):
        rids += [await plant.submit(words(8, pause_ms=30), prompt="x" * rng.randint(1, 300)) for _ in range(5)]
        leaving = rng.choice([process for process in processes if process.worker.stage in ("decode", "router")])
        processes.remove(leaving)
        processes += await plant.start(leaving.worker.stage)
        if rng.random() < 0.5:
            await plant.drain(leaving)
        else:
            await plant.kill(leaving)

    for rid in rids:
        await assert_whole(plant, read, rid, 8)
    await emptied(plant)
