"""Moving the spread of activations into the weights, so that both round well (SmoothQuant).

A channel that is large wherever a norm writes it is divided there and multiplied back in the weight that reads it,
which changes no product. How large the channels get is measured on a prompt of our own making.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from headrace.shared.model.decoder import Decoder, DecoderLayer
from headrace.shared.model.forms.sample import run_sample
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.layers.norm import RMSNorm

_LEAST = 1e-5
"""Channels that are never used are not stretched without bound."""


def smooth(decoder: Decoder, trial: Decoder) -> None:
    """Scale the norms before attention and MLP, and the weights behind them; call it before weights are rounded.

    The spread is measured on `trial`, the decoder itself or one that computes the same. Half of it moves.
    """
    largest = _largest_inputs(trial, [linear for _, linear in _pairs(trial)])
    for (norm, linear), size in zip(_pairs(decoder), largest, strict=True):
        if isinstance(norm, RMSNorm):
            weight = linear.weight.abs().amax(0)
            factor = size.clamp_min(_LEAST).sqrt() / weight.clamp_min(_LEAST).sqrt()
            norm.weight.div_(factor)
            linear.weight.mul_(factor)
            linear.affine = None


def _pairs(decoder: Decoder) -> list[tuple[nn.Module, Linear]]:
    """What stands before attention and MLP, with the one layer that reads it."""
    pairs: list[tuple[nn.Module, Linear]] = []
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer)
        pairs += [(layer.attention_norm, layer.attention.qkv), (layer.mlp_norm, layer.mlp.gate_up)]
    return pairs


def _largest_inputs(decoder: Decoder, linears: Sequence[nn.Module]) -> list[Tensor]:
    """The largest magnitude in each input channel of `linears`, [inputs] each, over a run on the sample."""
    found: dict[nn.Module, Tensor] = {}

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found[module] = inputs[0].float().abs().amax(0)

    run_sample(decoder, linears, look)
    return [found[linear].clone() for linear in linears]
