"""Attention and activations whose result for one row is the same bits whatever is computed beside it.

A sum of floating-point numbers depends on its order, and that on shapes. Here everything that is summed is a whole
number, and every sum stays below 2⁵³, where float64 holds it without rounding: any order, any padding, any kernel gives
the same bits. What remains looks at single elements, through operations that compute an element alike wherever it lies
in its tensor (`silu` and `gelu` do not: the last ones of a range take another path).
"""

import math

import torch
from torch import Tensor

_QUERY_BITS = 20
"""Of queries and keys: 2 · 20 bits and a head of up to 2¹² elements."""
_WEIGHT_BITS = 24
_VALUE_BITS = 12
"""Of what a bf16 value has, 8. Weights, values and 2¹⁷ keys make 53."""
MOST_KEYS = 1 << (53 - _WEIGHT_BITS - _VALUE_BITS)
"""Longest context."""


def attend_exactly(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """Softmax attention, `layers.attention.attend` to within the bits above."""
    assert k.shape[2] <= MOST_KEYS, "the sum of so many keys would be rounded"
    (q_whole, q_unit), (k_whole, k_unit) = _whole(q, _QUERY_BITS), _whole(k, _QUERY_BITS)
    scores = (q_whole @ k_whole.mT) * q_unit * k_unit.mT * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    # Each value comes with a unit of its own, which the weight takes over before it becomes a whole number.
    v_whole, v_unit = _whole(v, _VALUE_BITS)
    moved, unit = _whole(weights * v_unit.mT, _WEIGHT_BITS)
    total = (weights * (1 << _WEIGHT_BITS)).round_().sum(-1, keepdim=True) / (1 << _WEIGHT_BITS)
    return ((moved @ v_whole) * unit / total).to(q.dtype)


def silu_exactly(x: Tensor) -> Tensor:
    """`F.silu` from operations that do not mind where an element lies."""
    return x / (torch.exp(-x) + 1.0)


def gelu_exactly(x: Tensor) -> Tensor:
    """`F.gelu(x, approximate="tanh")` likewise."""
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2.0 / math.pi)
    return (torch.tanh(inner) + 1.0) * x * 0.5


def _whole(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Each row of the last dimension as whole numbers below 2^bits in float64, with the row's unit [..., 1]."""
    x = x.double()
    unit = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / (1 << bits)
    return (x / unit).round_(), unit
