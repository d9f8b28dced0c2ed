"""The block store contract: bytes by content address, never request state.

A miss, a timeout, a corrupt value and a dead server are the same event to every caller: the block is not there.
Implementations: `redis.RedisStore` (Valkey), `memory.MemoryStore`; one contract test for both. Calls are synchronous
and may block up to their budget: call them from a thread, never from an event loop or the engine thread.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""Bytes that nobody changes any more; views have items of one byte."""
Value = Buffer | tuple[Buffer, ...]
"""What is stored under one key; in parts, so that a header need not be copied together with what it heads."""


class BlockStore(Protocol):
    """Values are opaque here; `codec` frames and verifies them, `keys` names them."""

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        """Values in the order of `keys`, None for each one not to be had; never raises."""

    def put(self, items: Sequence[tuple[str, Value]]) -> int:
        """Store values and return how many were stored; never raises."""

    def count_prefix(self, keys: Sequence[str]) -> int:
        """Length of the longest leading run of `keys` that exists; 0 when the store does not answer."""

    def discard(self, key: str) -> None:
        """Remove a value that proved damaged, so that a whole one can take its place; never raises."""

    def is_healthy(self) -> bool:
        """Whether the store may be asked now (breaker closed); cheap, no round trip."""

    def ping(self) -> bool:
        """One round trip within the budget; closes or opens the breaker."""

    def close(self) -> None:
        """Release connections; idempotent."""
