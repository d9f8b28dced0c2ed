"""The block pool: which KV blocks are free, held or kept as cache, and under which content key. Knows no tensors.

Every block is in exactly one of three places: free (no content worth keeping), cached (keyed, held by nobody, evicted
least recently used first) or held (by one or more sequences). A key names a block only once the block is completely
computed: who publishes it answers for that.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference-counted blocks 0 … `num_blocks` - 1 with a map from content key to block."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("the KV pool holds not even one block")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refs: dict[int, int] = {}
        self._key_of: dict[int, str] = {}
        self._block_of: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks held by sequences."""
        return len(self._refs)

    def can_allocate(self, num: int, reusing: Sequence[int] = ()) -> bool:
        """Whether `num` fresh blocks can be had while the blocks `reusing` are acquired as well."""
        return num <= self.num_free - sum(block in self._cached for block in reusing)

    def allocate(self, num: int) -> list[int]:
        """Take `num` blocks with undefined content, evicting cached ones if need be."""
        assert num <= self.num_free
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(num)]
        self._refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def match(self, keys: Iterable[str]) -> list[int]:
        """The blocks of the longest leading run of known keys; takes no reference."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def lookup(self, key: str) -> int | None:
        """The block that holds the content of `key`; takes no reference."""
        return self._block_of.get(key)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take one more reference to blocks found by key."""
        for block in blocks:
            self._cached.pop(block, None)
            self._refs[block] = self._refs.get(block, 0) + 1

    def publish(self, block: int, key: str) -> None:
        """Let a held, completely computed block be found by `key`; the first block of a key stays its block."""
        assert block in self._refs
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference to each block back.

        The last blocks become the oldest of the cache: a prefix is worth nothing without its beginning.
        """
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            del self._refs[block]
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def drop_cache(self) -> None:
        """Forget all cached blocks; keys of held blocks stay."""
        while self._cached:
            self._free.append(self._evict())

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that free + cached + held is the whole pool and that `tables` hold exactly the references counted."""
        assert len(self._free) + len(self._cached) + len(self._refs) == self.num_blocks
        assert {*self._free, *self._cached, *self._refs} == set(range(self.num_blocks))
        held = [list(table) for table in tables]
        assert Counter(block for table in held for block in table) == Counter(self._refs)
        assert all(len(table) == len(set(table)) for table in held)
        assert {key: block for block, key in self._key_of.items()} == self._block_of
        assert set(self._cached) <= set(self._key_of)
        assert not set(self._free) & set(self._key_of)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        return block
