"""Products of small integers, exact: a row's result is the same bits whatever stands beside it.

Activations are unsigned bytes around 128, weights signed bytes within ±127, one scale for each row of the weight.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

ZERO = 128
"""The byte that stands for 0."""
LARGEST = 127
_EXACT_INPUTS = 1024
"""128 · 127 · 1024 < 2²⁴: so many products add up in fp32 without rounding, in any order."""


class Product(Protocol):
    """A weight, ready to be multiplied with."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """uint8 [T, inputs] → fp32 [T, rows], the row scales of the weight applied."""


class OneDnnProduct(nn.Module):
    """Through oneDNN's integer kernels, which accumulate in int32. Private to torch, whose version is pinned."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self.scale = scale
        self.zeros = torch.zeros(len(scale), dtype=torch.int32)

    def forward(self, x: Tensor) -> Tensor:
        """uint8 [T, inputs] → fp32 [T, rows]."""
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, ZERO, self.packed, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out


class FloatProduct(nn.Module):
    """In fp32 on any device: integers this small are exact there, few enough at a time. The same bits as oneDNN's."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        starts = range(0, weight.shape[1], _EXACT_INPUTS)
        self.parts = [weight[:, start : start + _EXACT_INPUTS].float().t() for start in starts]
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """uint8 [T, inputs] → fp32 [T, rows]."""
        signed = x.float() - ZERO
        total = torch.zeros(len(x), len(self.scale), dtype=torch.float64, device=x.device)
        for index, part in enumerate(self.parts):
            total += signed[:, index * _EXACT_INPUTS :][:, : len(part)] @ part
        return total.float() * self.scale


def make_product(weight: Tensor) -> Product:
    """Round a weight [rows, inputs] to signed bytes, one scale a row, and prepare it for its device."""
    scale = weight.float().abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
    rounded = (weight / scale[:, None]).round().to(torch.int8)
    if weight.device.type == "cpu" and has_integer_kernels():
        return OneDnnProduct(rounded, scale)
    return FloatProduct(rounded, scale)


def has_integer_kernels() -> bool:
    """Whether this CPU adds up products of bytes in 32 bits; without, oneDNN saturates at 16."""
    cpu = torch.cpu.get_capabilities()
    is_there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return is_there and bool(cpu.get("avx512_vnni") or cpu.get("avx_vnni"))
