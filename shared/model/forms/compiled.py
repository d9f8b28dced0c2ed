"""The forms `int4-vnni` and `w8a8-vnni`: whole steps in the compiled kernels, in place of `int4` and `w8a8`.

Row-invariant by construction, so `engine.deterministic` costs nothing with them.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from headrace.shared.kernels import library
from headrace.shared.kernels.cores import Cores
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.fused import FusedDecoder, kv_head_bytes, why_not

_BLOCK_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """The file's own integers where it has them, `bits` elsewhere."""

    name: str
    bits: Literal[4, 8]
    cores: Cores
    kv_dtype: torch.dtype = torch.int8
    wants_affine: bool = True

    def kv_head_size(self, head_dim: int) -> int:
        """A byte each, and a scale of four bytes for every 32."""
        return kv_head_bytes(head_dim)

    def apply(self, decoder: Decoder) -> FusedDecoder:
        """Take over the weights of a decoder on the CPU."""
        return FusedDecoder(decoder, bits=self.bits, cores=self.cores)


def why_not_compiled(device: torch.device, config: ModelConfig, block_tokens: int) -> str | None:
    """What keeps a model from running in the compiled kernels; None if nothing does."""
    if device.type != "cpu":
        return f"they compute on the CPU, not on {device.type}"
    if block_tokens % _BLOCK_MULTIPLE:
        return f"engine.block_tokens is not a multiple of {_BLOCK_MULTIPLE}"
    return why_not(config) or (None if library.is_available() else "this machine has no compiler or no AVX512-VNNI")
