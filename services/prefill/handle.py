"""One prompt: use the blocks that exist, compute the others, put them in the shared store as they appear.

Prefill never writes the run log. A request it cannot work on goes on to decode uncomputed: whoever holds the right to
write ends it there.
"""

import asyncio

import msgspec
import structlog

from headrace.shared.engine import Payload, SequenceSpec, StepError, StepOutput
from headrace.shared.messages import Tokenized
from headrace.shared.packing import unpack_ids
from headrace.shared.serving import Served
from headrace.shared.telemetry import metrics

log = structlog.get_logger()

_GROUP = 16
"""Blocks stored in one go: a cancel is heard in between."""


async def prefill(item: Tokenized, served: Served, cancelled: asyncio.Event) -> Tokenized:
    """Put the prompt's full blocks in the shared store; returns the item with `prefilled` and `cached` set."""
    ids = unpack_ids(item.prompt_ids)
    size = served.driver.block_tokens
    keys = served.blocks.keys(item.request, ids)
    num_stored = await served.blocks.num_stored(keys)
    metrics.PROMPT_TOKENS_TOTAL.inc(len(ids))
    if num_stored == len(keys):
        return msgspec.structs.replace(item, prefilled=num_stored * size, cached=num_stored * size)
    work = _Work(item.request.rid, served, keys, cancelled)
    try:
        num_blocks = await work.run(ids, num_stored)
    except ValueError as error:
        log.warning("prompt_not_computed", request=item.request.rid, reason=str(error))
        return msgspec.structs.replace(item, cached=0)
    finally:
        served.driver.release(work.id)
    return msgspec.structs.replace(item, prefilled=num_blocks * size, cached=work.num_cached)


class _Work:
    """One prompt on the engine: blocks are stored while later ones are still being computed."""

    def __init__(self, rid: str, served: Served, keys: list[str], cancelled: asyncio.Event) -> None:
        self.id = rid
        self.num_cached = 0
        self._served = served
        self._keys = keys
        self._cancelled = cancelled
        self._computed: list[Payload] = []
        """Blocks computed and not stored yet."""
        self._num_stored = 0
        self._ended = False
        self._news = asyncio.Event()

    async def run(self, ids: list[int], num_stored: int) -> int:
        """Compute what is missing and store blocks as they appear; returns how many leading ones the store has.

        Raises ValueError as the engine does.
        """
        self._num_stored = num_stored
        spec = SequenceSpec(id=self.id, prompt=ids, max_new=0, block_keys=self._keys)
        waking = asyncio.create_task(self._wake_on_cancel())
        try:
            await self._served.add(
                spec, self._take, num_wanted=num_stored, first_export=num_stored, on_blocks=self._take_blocks
            )
            await self._store_all()
        finally:
            waking.cancel()
        return self._num_stored

    async def _wake_on_cancel(self) -> None:
        await self._cancelled.wait()
        self._news.set()

    async def _store_all(self) -> None:
        while not self._cancelled.is_set():
            await self._news.wait()
            self._news.clear()
            ended = self._ended
            while self._computed and not self._cancelled.is_set():
                if not await self._store_group():
                    return
            if ended:
                return

    async def _store_group(self) -> bool:
        payloads = self._computed[:_GROUP]
        num = await self._served.blocks.put(self._keys, self._num_stored, payloads)
        self._num_stored += num
        del self._computed[:_GROUP]
        return num == len(payloads)

    def _take_blocks(self, _first: int, payloads: list[Payload]) -> None:
        self._computed += payloads
        self._news.set()

    def _take(self, output: StepOutput | StepError) -> None:
        if isinstance(output, StepError):
            log.warning("prompt_not_computed", request=self.id, reason=str(output))
            self._ended = True
        else:
            self.num_cached = max(self.num_cached, output.num_cached)
            self._ended = self._ended or output.cause is not None
        self._news.set()
