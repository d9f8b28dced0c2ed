"""Matrix products with named row blocks, so that projections sharing an input are one product."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.weights.blocks import AffineRows


class Linear(nn.Module):
    """x · Wᵀ (+ b) over the concatenated rows of `parts`; computes in the type of its weight.

    Parameters are uninitialised: whoever builds a decoder fills them.
    """

    def __init__(self, num_inputs: int, parts: Mapping[str, int], *, bias: bool) -> None:
        super().__init__()
        self.parts = dict(parts)
        rows = sum(parts.values())
        self.weight = nn.Parameter(torch.empty(rows, num_inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(rows), requires_grad=False) if bias else None
        self.affine: AffineRows | None = None
        """The exact integers of the weight, where its file has them and the numeric form asked for them."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] → [..., rows], in the weight's type."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)

    def part_rows(self) -> dict[str, slice]:
        """Where each part's rows lie."""
        rows: dict[str, slice] = {}
        start = 0
        for name, count in self.parts.items():
            rows[name] = slice(start, start + count)
            start += count
        return rows
