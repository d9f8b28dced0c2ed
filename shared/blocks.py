"""KV blocks between workers: names them by content, frames them, moves them through the shared store.

The only place that knows the store, the key chain and the frame at once. Whatever goes wrong with a block, it is a
miss: callers use the longest good prefix and compute the rest.
"""

import asyncio
import time
from collections.abc import Sequence

from headrace.shared.cache import BlockStore, Buffer
from headrace.shared.cache.codec import frame, unframe
from headrace.shared.cache.keys import Scope, block_keys
from headrace.shared.cache.price import FetchPrice
from headrace.shared.config import Cache
from headrace.shared.messages import Request
from headrace.shared.telemetry import metrics

_MOST_BEHIND_BYTES = 64 << 20
"""Blocks on their way to the store behind somebody's back; more are dropped: they are a favour, not a duty."""


class SharedBlocks:
    """The blocks of one model in one numeric form."""

    def __init__(self, store: BlockStore | None, cache: Cache, fingerprint: str, form: str, block_tokens: int) -> None:
        """`store` None: nothing is shared, every lookup misses."""
        self._store = store
        self._cache = cache
        self._fingerprint = fingerprint
        self._form = form
        self._block_tokens = block_tokens
        self._behind: set[asyncio.Task[None]] = set()
        self._num_behind_bytes = 0
        self.price = FetchPrice()
        """What fetching costs."""

    def keys(self, request: Request, ids: Sequence[int]) -> list[str]:
        """Content address of every full block of a prompt, for this request's tenant and salt."""
        scope = Scope(
            fingerprint=self._fingerprint,
            form=self._form,
            attention="causal",
            salt=(self._cache.salt, request.tenant, request.cache_salt),
        )
        return block_keys(scope, ids, self._block_tokens)

    def is_healthy(self) -> bool:
        """Whether the store can be asked now."""
        return self._store is not None and self._store.is_healthy()

    async def num_stored(self, keys: Sequence[str]) -> int:
        """How many leading blocks the store has."""
        store = self._store
        if store is None or not keys or not store.is_healthy():
            return 0
        return await asyncio.to_thread(store.count_prefix, keys)

    async def fetch(self, keys: Sequence[str], first: int, last: int) -> list[Buffer]:
        """Payloads of blocks [first, last), cut at the first that is missing or bad."""
        store = self._store
        if store is None or first >= last or not store.is_healthy():
            return []
        return await asyncio.to_thread(self._fetch, store, keys, first, last)

    async def put(self, keys: Sequence[str], first: int, payloads: Sequence[Buffer]) -> int:
        """Store payloads of blocks `first…`; returns how many leading ones are stored now."""
        store = self._store
        if store is None or not payloads or not store.is_healthy():
            return 0
        return await asyncio.to_thread(self._put, store, keys, first, payloads)

    def publish(self, keys: Sequence[str], first: int, payloads: Sequence[Buffer]) -> None:
        """Store payloads of blocks `first…` behind the caller's back, or drop them while many are on their way."""
        num_bytes = sum(len(payload) for payload in payloads)
        if not self.is_healthy() or self._num_behind_bytes + num_bytes > _MOST_BEHIND_BYTES:
            return
        self._num_behind_bytes += num_bytes
        task = asyncio.create_task(self._publish(keys, first, payloads, num_bytes))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def settle(self) -> None:
        """Wait until nothing published is on its way."""
        while self._behind:
            await asyncio.wait(set(self._behind))

    async def _publish(self, keys: Sequence[str], first: int, payloads: Sequence[Buffer], num_bytes: int) -> None:
        try:
            await self.put(keys, first, payloads)
        finally:
            self._num_behind_bytes -= num_bytes

    def _fetch(self, store: BlockStore, keys: Sequence[str], first: int, last: int) -> list[Buffer]:
        good: list[Buffer] = []
        began = time.monotonic()
        values = store.get(list(keys[first:last]))
        self.price.observe(sum(len(value) for value in values if value is not None), time.monotonic() - began)
        for offset, value in enumerate(values):
            index = first + offset
            if value is None:
                break
            payload = unframe(value, keys[index], index, self._block_tokens)
            if payload is None:
                metrics.KV_MISS_TOTAL.labels(reason="corrupt").inc()
                # Prefill asks only whether blocks exist: left there, it would cost every later request of this prefix.
                store.discard(keys[index])
                break
            good.append(payload)
        return good

    def _put(self, store: BlockStore, keys: Sequence[str], first: int, payloads: Sequence[Buffer]) -> int:
        items = [
            (keys[first + offset], frame(payload, keys[first + offset], first + offset, self._block_tokens))
            for offset, payload in enumerate(payloads)
        ]
        return store.put(items)
