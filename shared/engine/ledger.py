"""Which blocks of the pool a sequence holds, and how far they are filled. Integers only, no tensors.

The scheduler decides who computes; this moves blocks between the pool and the sequences accordingly.
"""

from collections.abc import Callable

from headrace.shared.engine import Payload
from headrace.shared.engine.blocks import BlockPool
from headrace.shared.engine.sequence import Sequence

Import = Callable[[int, Payload], None]
"""Writes a payload into a block."""


class Ledger:
    """Blocks of sequences in one pool."""

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self._pool = pool
        self._block_tokens = block_tokens

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self._block_tokens)

    def can_open(self, sequence: Sequence, margin: int) -> bool:
        """Whether a sequence finds blocks for all its tokens and leaves `margin` free."""
        hits = self._hits(sequence)
        num_fresh = self.num_blocks(sequence.num_target) - len(hits)
        return self._pool.can_allocate(num_fresh + margin, reusing=hits)

    def open(self, sequence: Sequence) -> None:
        """Give a sequence blocks for all its tokens, those the pool knows by their keys among them."""
        hits = self._hits(sequence)
        self._pool.acquire(hits)  # before allocating, which could evict them
        sequence.blocks = hits + self._pool.allocate(self.num_blocks(sequence.num_target) - len(hits))
        sequence.num_computed = len(hits) * self._block_tokens
        sequence.count_cached(sequence.num_computed)

    def can_extend(self, sequence: Sequence) -> bool:
        """Whether there are blocks for the tokens that a sequence has gained."""
        return self._pool.can_allocate(self._num_missing(sequence))

    def extend(self, sequence: Sequence) -> None:
        """Give a sequence the blocks for the tokens that it has gained."""
        num_missing = self._num_missing(sequence)
        if num_missing > 0:
            sequence.blocks += self._pool.allocate(num_missing)

    def close(self, sequence: Sequence) -> None:
        """Take all blocks back; the pool keeps what has a key while there is room."""
        self._pool.release(sequence.blocks)

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Move `num_computed` on and publish the keyed blocks that became complete."""
        first = sequence.num_computed // self._block_tokens
        sequence.num_computed += num_tokens
        keys = sequence.spec.block_keys
        for index in range(first, min(sequence.num_computed // self._block_tokens, len(keys))):
            self._pool.publish(sequence.blocks[index], keys[index])

    def take_over(self, sequence: Sequence) -> None:
        """Replace blocks yet to be computed by blocks that others have published since."""
        while (key := sequence.awaited_key) is not None and (block := self._pool.lookup(key)) is not None:
            index = sequence.num_computed // self._block_tokens
            self._pool.acquire([block])
            self._pool.release([sequence.blocks[index]])
            sequence.blocks[index] = block
            sequence.num_computed += self._block_tokens
            sequence.count_cached(self._block_tokens)

    def bring_in(self, sequence: Sequence, import_block: Import, most: int) -> int:
        """Write the next payloads that a sequence brings along, and return how many: at most `most`.

        None are left to it once they do not join on or are all in place.
        """
        num_written = 0
        while sequence.payloads:
            self.take_over(sequence)
            index = sequence.num_computed // self._block_tokens
            if index >= sequence.num_reusable or index not in sequence.payloads:
                sequence.payloads = {}
            elif num_written == most:
                break
            else:
                import_block(sequence.blocks[index], sequence.payloads[index])
                self.advance(sequence, self._block_tokens)
                sequence.count_cached(self._block_tokens)
                num_written += 1
        return num_written

    def _hits(self, sequence: Sequence) -> list[int]:
        return self._pool.match(sequence.spec.block_keys[: sequence.num_reusable])

    def _num_missing(self, sequence: Sequence) -> int:
        return self.num_blocks(sequence.num_target) - len(sequence.blocks)
