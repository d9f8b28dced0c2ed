"""Weights as small integers with a scale and an offset per 32 inputs: taken from a file's blocks, or made by rounding.

Knows the decoder's own names, like `fill`; not what the integers are multiplied with.
"""

from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor

from headrace.shared.model.decoder import Decoder
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.weights.blocks import GROUP, AffineRows, concatenate
from headrace.shared.model.weights.fill import in_our_order

Read = Callable[[str], AffineRows | None]
"""Finds the integers of a weight by our name for it, None where there are none."""


def attach_affine(decoder: Decoder, read: Read) -> None:
    """Give each linear layer the exact integers of all its parts, where the file has them in one width.

    A tied head takes the integers of the embedding.
    """
    for path, module in decoder.named_modules():
        if not isinstance(module, Linear):
            continue
        if module is decoder.head:
            module.affine = read("embed.weight" if decoder.config.tie else "head.weight")
        else:
            parts = [rows for rows in _parts(decoder, path, module, read) if rows is not None]
            module.affine = concatenate(parts) if len(parts) == len(module.parts) else None


def quantise_rows(weight: Tensor, bits: Literal[4, 8]) -> AffineRows:
    """Round [rows, inputs] fp32 to the nearest integers, inputs in groups of 32.

    4 bits run from the least value of a group to the largest; 8 bits lie evenly around 128.
    """
    assert weight.shape[1] % GROUP == 0, "a row of whole groups"
    groups = weight.float().view(len(weight), -1, GROUP)
    if bits == 4:
        offset = groups.amin(-1)
        scale = (groups.amax(-1) - offset) / 15
        q = (groups - offset[..., None]) / _divisor(scale)
    else:
        scale = groups.abs().amax(-1) / 127
        offset = scale * -128.0
        q = groups / _divisor(scale) + 128
    return AffineRows(q.round().to(torch.uint8).view(weight.shape), scale, offset, bits)


def _parts(decoder: Decoder, path: str, linear: Linear, read: Read) -> Iterator[AffineRows | None]:
    """The integers of each part, whether the file keeps them apart or joined."""
    whole = read(f"{path}.weight") if len(linear.parts) > 1 else None
    for part, rows in linear.part_rows().items():
        name = f"{path.rpartition('.')[0]}.{part}.weight"
        found = read(name) if whole is None else whole.map(itemgetter(rows))
        yield found and found.map(partial(in_our_order, name, config=decoder.config))


def _divisor(scale: Tensor) -> Tensor:
    """A group of equal values has scale 0 and nothing to divide."""
    return torch.where(scale == 0, 1.0, scale)[..., None]
