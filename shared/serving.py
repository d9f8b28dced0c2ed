"""The models of an engine worker: one engine with its driver and its shared blocks per served name."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from headrace.shared.blocks import SharedBlocks
from headrace.shared.cache import BlockStore
from headrace.shared.cache.redis import open_store
from headrace.shared.catalogue import ModelFiles, lookup
from headrace.shared.config import Config
from headrace.shared.engine import Payload, SequenceSpec
from headrace.shared.engine.build import build_engine
from headrace.shared.engine.driver import BlockSink, EngineDriver, Sink
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

    async def add(
        self,
        spec: SequenceSpec,
        sink: Sink,
        *,
        num_wanted: int,
        first_export: int | None = None,
        on_blocks: BlockSink | None = None,
    ) -> None:
        """Queue a sequence on top of the blocks this engine has and, up to `num_wanted`, those the store has.

        Fetches only what costs less than computing it. `on_blocks` gets the blocks from `first_export` on as they are
        there; None: those that were neither here nor fetched. Raises ValueError as the engine does.
        """
        num_local = self.driver.num_local(spec.block_keys)
        payloads = await self._fetch(spec.block_keys, num_local, num_wanted)
        first = num_local + len(payloads) if first_export is None else first_export
        try:
            await self.driver.add(spec, sink, payloads, num_local, first_export=first, on_blocks=on_blocks)
        except ValueError as error:
            if not payloads:
                raise
            # A block that does not fit is as good as none: the prompt is computed instead.
            log.warning("blocks_refused", sequence=spec.id, reason=str(error))
            await self.driver.add(spec, sink, first_export=first, on_blocks=on_blocks)

    async def _fetch(self, keys: Sequence[str], first: int, last: int) -> Sequence[Payload]:
        num_tokens = max(0, last - first) * self.driver.block_tokens
        prompt_rate = self.driver.pressure.prompt_rate
        if not self.blocks.price.is_worth_it(num_tokens, self.report.kv_token_bytes, prompt_rate):
            return []
        return await self.blocks.fetch(keys, first, last)


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

    def load(self) -> dict[str, object]:
        """What a worker reports of its engines: rates of the fastest, KV room of the fullest, and whether it can reach
        the store.
        """
        drivers = [served.driver for served in self._served.values()]
        return {
            "rate": max(driver.rate for driver in drivers),
            "prompt_rate": max(driver.pressure.prompt_rate for driver in drivers),
            "token_rate": max(driver.pressure.token_rate for driver in drivers),
            "fetch_rate": max(served.blocks.price.rate for served in self._served.values()),
            # Zero would read as unknown.
            "kv_free_tokens": max(1, min(driver.pressure.free_tokens for driver in drivers)),
            "cache_ok": self.is_cache_ok(),
        }

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
            await one.blocks.settle()
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
