"""The form `w8a8`: weights and activations in 8 bits, activations rounded row by row as they come.

The products are row-invariant: integers add up exactly, and what is around them looks at one row. The inputs that bear
rounding worst, those of the down projection and of the head, are rounded to two bytes and cost two products. With
attention and activations made row-invariant too, all of a step is.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from headrace.shared.errors import ConfigError
from headrace.shared.model.decoder import Decoder, DecoderLayer
from headrace.shared.model.forms.exact import MOST_KEYS, attend_exactly, gelu_exactly, silu_exactly
from headrace.shared.model.forms.products import LARGEST, ZERO, make_product
from headrace.shared.model.forms.replace import replace_linears
from headrace.shared.model.forms.smoothing import smooth
from headrace.shared.model.layers.linear import Linear

_DIGIT = 256


class W8A8:
    """Integer linear layers, the head among them; keys and values in bf16."""

    name = "w8a8"
    kv_dtype = torch.bfloat16
    wants_affine = False

    def kv_head_size(self, head_dim: int) -> int:
        """One element each."""
        return head_dim

    def apply(self, decoder: Decoder) -> Decoder:
        """Bring a decoder that lies on its device into this form, once."""
        smooth(decoder, decoder)
        _round(decoder)
        return decoder


class RowInvariant:
    """`w8a8` for which a row's result is the same bits alone, beside any others, and in any cut of its prompt."""

    name = "w8a8-exact"
    kv_dtype = torch.bfloat16
    wants_affine = False

    def kv_head_size(self, head_dim: int) -> int:
        """One element each."""
        return head_dim

    def apply(self, decoder: Decoder) -> Decoder:
        """Bring a decoder that lies on its device into this form, once."""
        if decoder.config.context > MOST_KEYS:
            raise ConfigError(
                f"engine.deterministic=true serves contexts up to {MOST_KEYS}; cut with model.max_context"
            )
        activate = silu_exactly if decoder.config.activation == "silu" else gelu_exactly
        for layer in decoder.layers:
            assert isinstance(layer, DecoderLayer)
            layer.attention.attend = attend_exactly
            layer.mlp.activate = activate
        # All workers must smooth alike, whatever their number of threads: what is measured must be row-invariant too.
        trial = deepcopy(decoder, {id(parameter): parameter for parameter in decoder.parameters()})
        replace_linears(trial, FineLinear)
        smooth(decoder, trial)
        _round(decoder)
        return decoder


class CoarseLinear(nn.Module):
    """x · Wᵀ (+ b) with each row of x rounded to one signed byte a value."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.product = make_product(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] → [..., rows] in fp32."""
        x, scale = _scaled(x, LARGEST)
        out = self.product((x.round_() + ZERO).to(torch.uint8)) * scale
        return out if self.bias is None else out + self.bias


class FineLinear(nn.Module):
    """x · Wᵀ (+ b) with each row of x rounded to two signed bytes a value: x = scale · (256 · high + low)."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.product = make_product(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] → [..., rows] in fp32."""
        x, scale = _scaled(x, LARGEST * _DIGIT)
        x = x.round_()
        high = (x / _DIGIT + 0.5).floor_()  # halves go up: the low byte ends at 127
        digits = torch.cat((high, x - high * _DIGIT))
        upper, lower = self.product((digits + ZERO).to(torch.uint8)).chunk(2)
        out = (upper * _DIGIT + lower) * scale
        return out if self.bias is None else out + self.bias


def _round(decoder: Decoder) -> None:
    replace_linears(decoder, lambda linear: FineLinear(linear) if "down" in linear.parts else CoarseLinear(linear))
    head = decoder.head
    assert isinstance(head, Linear), "a decoder takes one form, once"
    decoder.head = FineLinear(head)  # however large: in bytes a copy is small, and in fp32 it is not row-invariant


def _scaled(x: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Stretch each row of [T, inputs] so that its largest value becomes `largest`; with the scale [T, 1] to undo it."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / largest
    return x / scale, scale
