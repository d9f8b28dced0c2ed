"""The models of an engine worker: one engine with its driver and its shared blocks per served name."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Literal

import structlog

from headrace.shared.blocks import SharedBlocks
from headrace.shared.cache import BlockStore
from headrace.shared.cache.redis import open_store
from headrace.shared.catalogue import ModelFiles, lookup
from headrace.shared.config import Config
from headrace.shared.engine import SequenceSpec
from headrace.shared.engine.build import build_engine
from headrace.shared.engine.driver import EngineDriver, Sink
from headrace.shared.errors import HeadraceError
from headrace.shared.reports import ModelReport
from headrace.shared.telemetry import metrics

log = structlog.get_logger()

_PING_S = 5.0


class EngineFailedError(HeadraceError):
    """An engine broke as a whole; its worker ends and its requests move on."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model as an engine worker serves it."""

    files: ModelFiles
    driver: EngineDriver
    blocks: SharedBlocks
    report: ModelReport

    async def add(self, spec: SequenceSpec, sink: Sink, *, num_wanted: int) -> None:
        """Queue a sequence on top of the blocks this engine has and, up to `num_wanted`, those the store has.

        Raises ValueError as the engine does.
        """
        keys = spec.block_keys
        num_local = await self.driver.call(lambda engine: engine.num_local(keys))
        payloads = await self.blocks.fetch(keys, num_local, num_wanted)
        try:
            await self.driver.add(spec, sink, payloads, num_local)
        except ValueError as error:
            if not payloads:
                raise
            # A block that does not fit is as good as none: the prompt is computed instead.
            log.warning("blocks_refused", sequence=spec.id, reason=str(error))
            await self.driver.add(spec, sink)


class Models:
    """All models of one worker."""

    def __init__(self, served: dict[str, Served], store: BlockStore | None) -> None:
        self._served = served
        self._store = store

    def get(self, name: str) -> Served | None:
        """The model of that name, or None."""
        return self._served.get(name)

    def reports(self) -> tuple[ModelReport, ...]:
        """What the worker reports."""
        return tuple(served.report for served in self._served.values())

    def is_alive(self) -> bool:
        """Whether every engine makes progress."""
        return all(served.driver.is_alive() for served in self._served.values())

    def is_cache_ok(self) -> bool:
        """Whether the shared store can be asked now."""
        return self._store is not None and self._store.is_healthy()

    def rate(self) -> float:
        """Measured tokens per second of the fastest engine; 0 when nothing was measured."""
        return max((served.driver.rate for served in self._served.values()), default=0.0)

    def free_tokens(self) -> int:
        """KV room of the fullest engine, tokens."""
        return min((served.driver.pressure.free_tokens for served in self._served.values()), default=0)

    async def until_failed(self, work: Awaitable[None], *beside: Awaitable[None]) -> None:
        """Run `work` to its end, and `beside` meanwhile.

        Raises EngineFailedError as soon as an engine breaks as a whole, and whatever breaks `beside`.
        """
        working = asyncio.ensure_future(work)
        failures = [asyncio.ensure_future(served.driver.failed.wait()) for served in self._served.values()]
        others = [asyncio.ensure_future(other) for other in (self._watch_store(), *beside)]
        tasks = [working, *failures, *others]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                if other.done() and not working.done():
                    other.result()
            if not working.done():
                raise EngineFailedError("an engine broke")
            working.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_store(self) -> None:
        """Ask the store now and then, so that an idle worker knows when it is back."""
        while True:
            if self._store is not None:
                await asyncio.to_thread(self._store.ping)
            await asyncio.sleep(_PING_S)


@contextlib.asynccontextmanager
async def open_models(config: Config, role: Literal["prefill", "decode"]) -> AsyncIterator[Models]:
    """Load every configured model and start its engine. Raises ModelError or ConfigError with one readable line."""
    store = open_store(config.cache, metrics.CacheMeter())
    served: dict[str, Served] = {}
    try:
        for name in config.model.names:
            one = await _serve(name, config, role, store)
            served[one.files.name] = one
        yield Models(served, store)
    finally:
        for one in served.values():
            one.driver.stop()
        if store is not None:
            store.close()


async def _serve(name: str, config: Config, role: Literal["prefill", "decode"], store: BlockStore | None) -> Served:
    files = await asyncio.to_thread(lookup.resolve, name, config.model.dir)
    built = await asyncio.to_thread(build_engine, files, config, role)
    driver = EngineDriver(built.engine, files.name)
    driver.start()
    log.info("model_loaded", model=files.name, profile=built.profile, max_tokens=driver.max_context)
    report = ModelReport(
        name=files.name,
        revision=files.revision,
        fingerprint=built.fingerprint,
        max_tokens=driver.max_context,
        created=files.created,
        kv_token_bytes=built.kv_token_bytes,
        profile=built.profile,
    )
    blocks = SharedBlocks(store, config.cache, built.fingerprint, built.profile, driver.block_tokens)
    return Served(files=files, driver=driver, blocks=blocks, report=report)
