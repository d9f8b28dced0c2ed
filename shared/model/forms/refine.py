"""Which groups of a linear layer's inputs deserve a second, finer rounding: those whose rounding error weighs most.

A trained model keeps a few channels of its residual stream many times larger than the rest, always the same ones; in a
group with such a channel the small ones lose their bits. Two groups in eighteen make up most of the error of SmolLM2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.sample import run_sample
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.weights.blocks import GROUP

_LEVELS = 127
"""Integers on either side of zero."""


def heaviest_groups(decoder: Decoder, linears: Sequence[tuple[Linear, int]]) -> list[list[int]]:
    """For each linear layer the so many input groups with the largest error on a sample, in ascending order."""
    errors: dict[nn.Module, Tensor] = {}

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, Linear)
        weights = module.weight.float().square().sum(0).view(-1, GROUP)
        errors[module] = (_rounding_errors(inputs[0]).square() * weights).sum((0, 2))

    # All workers must choose alike, and sums over several threads differ in the last bit.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_sample(decoder, [linear for linear, _ in linears], look)
    torch.set_num_threads(num_threads)
    return [sorted(errors[linear].topk(min(num, len(errors[linear]))).indices.tolist()) for linear, num in linears]


def _rounding_errors(x: Tensor) -> Tensor:
    """[rows, inputs] → [rows, groups, 32]."""
    groups = x.float().view(len(x), -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / _LEVELS
    return groups - (groups / torch.where(scale == 0, 1.0, scale)).round() * scale
