"""What a numeric form is to those who load a model."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from headrace.shared.model.decoder import Decoder


class Profile(Protocol):
    """One numeric form."""

    @property
    def name(self) -> str:
        """As configured, reported, and mixed into cache keys."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """Element type of keys and values."""

    def kv_head_size(self, head_dim: int) -> int:
        """Elements that the key, or value, of one head takes in the cache."""

    @property
    def wants_affine(self) -> bool:
        """Whether `apply` uses the exact integers of quantised weights, which cost memory while a model is loaded."""

    def apply(self, decoder: Decoder) -> Callable[..., Tensor]:
        """Bring a decoder that lies on its device into this form, once; returns what computes a step from now on."""
