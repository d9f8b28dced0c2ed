"""Lays affine weights out in the tiles that `csrc/linear.h` reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.shared.kernels.library import MOST_REFINED, Linear
from headrace.shared.kernels.memory import prefer_huge_pages

GROUP = 32
TILE = 16
_QUADS = GROUP // 4
_LINE_BYTES = 64


@dataclass(slots=True)
class Packed:
    """One weight in tiles, with the tensors it points to."""

    linear: Linear
    held: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return sum(tensor.numel() * tensor.itemsize for tensor in self.held)


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight to be packed: value = scale · q + offset. Rows are a multiple of 16, inputs of 32."""

    q: Tensor
    """[rows, inputs] uint8, 0..15 for 4 bits."""
    scale: Tensor
    """[rows, inputs / 32] fp32."""
    offset: Tensor
    """[rows, inputs / 32] fp32."""
    bits: int
    bias: Tensor | None = None
    """[rows]."""
    is_paired: bool = False
    """The first half of the rows gates the second: tiles of both alternate. Rows are then a multiple of 64."""
    refined: Sequence[int] = ()
    """Groups of the input whose rounding errors are multiplied, too."""


def pack(weight: Weight) -> Packed:
    """Lay a weight out for the kernels."""
    q, bits = weight.q, weight.bits
    rows, inputs = q.shape
    assert rows % (4 * TILE if weight.is_paired else TILE) == 0
    assert inputs % GROUP == 0
    assert len(weight.refined) <= MOST_REFINED
    paired = weight.is_paired
    order = _order(rows, paired=paired)
    by_row = q[order].view(rows // TILE, TILE, inputs // GROUP, _QUADS, 4)
    quads = by_row.permute(0, 2, 3, 1, 4)  # [tiles, groups, quads, 16, 4]
    if bits == 4:
        quads = quads[:, :, : _QUADS // 2] | quads[:, :, _QUADS // 2 :] << 4
    scales = [_by_tile(tensor[order]) for tensor in (weight.scale, weight.offset)]
    has_half = all(torch.equal(scale.half().float(), scale) for scale in scales)
    parts = [quads.flatten(2), *(_bytes(scale.half() if has_half else scale) for scale in scales)]
    tiles = _aligned(torch.cat(parts, dim=-1))
    refined = torch.tensor(weight.refined, dtype=torch.int32)
    bias = None if weight.bias is None else weight.bias[order].float().contiguous()
    linear = Linear(
        rows=rows,
        inputs=inputs,
        bits=bits,
        has_half_scales=has_half,
        num_refined=len(refined),
        tiles=tiles.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        refined=refined.data_ptr(),
    )
    return Packed(linear, (tiles, refined, *([] if bias is None else [bias])))


def _order(rows: int, *, paired: bool) -> Tensor:
    order = torch.arange(rows)
    if not paired:
        return order
    return order.view(2, rows // (2 * TILE), TILE).transpose(0, 1).reshape(-1)


def _by_tile(tensor: Tensor) -> Tensor:
    """[rows, groups] → [tiles, groups, 16] fp32."""
    rows, groups = tensor.shape
    return tensor.view(rows // TILE, TILE, groups).transpose(1, 2).float().contiguous()


def _bytes(tensor: Tensor) -> Tensor:
    """The same numbers as bytes, in the last dimension."""
    return tensor.contiguous().view(torch.uint8)


def _aligned(tensor: Tensor) -> Tensor:
    """A copy that starts at a cache line, as aligned loads need it."""
    room = prefer_huge_pages(torch.empty(tensor.numel() + _LINE_BYTES, dtype=torch.uint8))
    start = -room.data_ptr() % _LINE_BYTES
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)
