"""The scripted model with a block store in memory, and prompts for it."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.shared.blocks import SharedBlocks
from headrace.shared.cache import BlockStore
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.catalogue import ModelFiles
from headrace.shared.config import Cache
from headrace.shared.engine.driver import EngineDriver
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.ids import new_rid
from headrace.shared.messages import Deadlines, Request, Tokenized
from headrace.shared.packing import pack_ids
from headrace.shared.reports import ModelReport
from headrace.shared.serving import Served

FILES = ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="00")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Served]]:
    """Serve the scripted model with a store; keywords are the engine's."""
    drivers: list[EngineDriver] = []

    def start(store: BlockStore | None, **options: object) -> Served:
        driver = EngineDriver(ScriptedEngine(**options), "scripted")
        driver.start()
        drivers.append(driver)
        blocks = SharedBlocks(store, Cache(), "00", "scripted", driver.block_tokens)
        return Served(files=FILES, driver=driver, blocks=blocks, report=ModelReport(name="scripted"))

    yield start
    for driver in drivers:
        driver.stop()


@pytest.fixture
def prompt() -> Callable[..., Tokenized]:
    """A request whose prompt has `num` tokens, the same ones every time."""

    def make(num: int, **fields: object) -> Tokenized:
        deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
        known = {"rid": new_rid(), "ing": "i", "model": "scripted", "deadlines": deadlines, "max_new": 5}
        ids = pack_ids([n * 7 % 251 for n in range(num)])
        now = round(time.time() * 1000)
        return Tokenized(request=Request(**{**known, **fields}), prompt_ids=ids, accepted_ms=now)

    return make
