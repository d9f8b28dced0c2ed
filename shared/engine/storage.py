"""Key and value tensors of every layer, by block; exports and imports blocks as raw bytes.

Knows no sequences and no content addresses: a block is a number.
"""

import torch
from torch import Tensor

from headrace.shared.engine import Payload
from headrace.shared.kernels.memory import prefer_huge_pages
from headrace.shared.model.config import ModelConfig


class KVStorage:
    """`num_blocks` blocks of `block_tokens` slots each; physical slot = block · block_tokens + offset.

    All of it is touched at once: a process that will need the memory should fail at its start, not under load.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        head_size: int | None = None,
    ) -> None:
        """`head_size`: elements that a head's key, or value, takes in a slot, if not `config.head_dim`."""
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.dtype = dtype
        shape = (len(config.layers), 2, num_blocks * block_tokens, config.kv_heads, head_size or config.head_dim)
        self._tensor = prefer_huge_pages(torch.empty(shape, dtype=dtype, device=device)).zero_()
        self._layers = [(kv[0], kv[1]) for kv in self._tensor]

    @staticmethod
    def block_bytes_for(
        config: ModelConfig, block_tokens: int, dtype: torch.dtype, head_size: int | None = None
    ) -> int:
        """Size of one block's payload, for sizing a storage before it exists."""
        per_slot = 2 * config.kv_heads * (head_size or config.head_dim) * dtype.itemsize
        return len(config.layers) * block_tokens * per_slot

    @property
    def block_bytes(self) -> int:
        """Size of one block's payload."""
        return self._block(0).numel() * self.dtype.itemsize

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [num_blocks * block_tokens, kv_heads, head_size]."""
        return self._layers[index]

    def export_block(self, block: int) -> Payload:
        """A copy of a block's raw bytes, [layers, keys | values, block_tokens, kv_heads, head_size] as they lie."""
        copy = torch.empty_like(self._block(block), device="cpu", memory_format=torch.contiguous_format)
        copy.copy_(self._block(block))
        return copy.view(torch.uint8).flatten().numpy().data

    def import_block(self, block: int, payload: Payload) -> None:
        """Put exported bytes back, bit for bit; raises ValueError if the size is wrong."""
        if len(payload) != self.block_bytes:
            raise ValueError(f"block payload has {len(payload)} bytes, expected {self.block_bytes}")
        target = self._block(block)
        # torch refuses to promise anything about read-only buffers; what comes from the store is none.
        data = bytearray(payload) if memoryview(payload).readonly else payload
        target.copy_(torch.frombuffer(data, dtype=self.dtype).view(target.shape))

    def _block(self, block: int) -> Tensor:
        start = block * self.block_tokens
        return self._tensor[:, :, start : start + self.block_tokens]
