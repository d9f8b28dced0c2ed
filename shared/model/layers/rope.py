"""Rotary position embedding, half-split layout, in fp32."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.config import Rope


class Angles(NamedTuple):
    """Cosines and sines of a step's positions, each [T, 1, head_dim]; the first half of `sin` is negated."""

    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """One rotary embedding; layers that share it share the angles of a step.

    Elements that do not turn have frequency 0, so that every head is turned whole.
    """

    def __init__(self, rope: Rope, head_dim: int) -> None:
        super().__init__()
        turning = frequencies(rope, head_dim)
        still = head_dim // 2 - len(turning)
        amplitudes = torch.full_like(turning, rope.amplitude)
        self.register_buffer("frequencies", F.pad(turning, (0, still)), persistent=False)
        self.register_buffer("amplitudes", F.pad(amplitudes, (0, still), value=1.0), persistent=False)

    frequencies: Tensor
    amplitudes: Tensor

    def forward(self, positions: Tensor) -> Angles:
        """[T] positions → the angles of every row."""
        angle = positions.float()[:, None, None] * self.frequencies  # [T, 1, head_dim / 2]
        cos, sin = angle.cos() * self.amplitudes, angle.sin() * self.amplitudes
        return Angles(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn [T, heads, head_dim] by the angles of its rows; fp32."""
    return torch.addcmul(x * angles.cos, x.roll(x.shape[-1] // 2, dims=-1), angles.sin)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[rotary_dim / 2] radians per position."""
    size = rope.rotary_dim or head_dim
    waves = rope.theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)
    plain = 1.0 / (waves * torch.tensor(rope.divisors) if rope.divisors else waves)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Slow waves are stretched by `factor`, fast ones kept, those between blended linearly in turns per context."""
    turns = rope.original_context * plain / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return (1.0 - keep) * plain / rope.factor + keep * plain
