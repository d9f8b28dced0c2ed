"""What one forward pass needs from the engine: the interface between the decoder and the batch and storage it is given.

The engine owns both sides' implementations (`engine.batch`, `engine.storage`); the model knows only these shapes.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Query rows attended to in one operation: one query of many sequences, or many queries of one sequence."""

    rows: slice
    """Which rows of the step, `num_sequences * num_queries` of them, sequence by sequence."""
    num_sequences: int
    num_queries: int
    slots: Tensor
    """[num_sequences * num_keys] physical slots of the keys; padding repeats a slot of the same sequence."""
    bias: Tensor | None
    """[num_sequences, 1, num_queries * heads per key head, num_keys], 0 or -inf; None when every key is visible."""


class Step(Protocol):
    """New tokens of any number of sequences, each on top of its own cached prefix; T rows in all."""

    @property
    def ids(self) -> Tensor:
        """[T] int64 token ids."""

    @property
    def positions(self) -> Tensor:
        """[T] int64 positions."""

    @property
    def slots(self) -> Tensor:
        """[T] int64 physical KV slots the rows are written to."""

    @property
    def logit_rows(self) -> Tensor:
        """[R] int64 rows whose logits are wanted, in the order they are wanted."""

    def groups(self, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> tuple[AttentionGroup, ...]:
        """Index and mask tensors of attention for layers with this window; the groups cover all rows in order."""


class KVCache(Protocol):
    """Keys and values of every layer by physical slot."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of keys and values."""

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [slots, kv_heads, head_dim]; written in place."""
