"""Root-mean-square norms; always in fp32, whatever the type of the input."""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) · w over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size = (size,)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → the same shape in fp32."""
        return F.rms_norm(x.float(), self.size, self.weight, self.eps)


class HeadNorm(nn.Module):
    """The norms of query and key heads in one operation; query heads share one weight, key heads another."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.size = (head_dim,)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(2, head_dim), requires_grad=False)
        self.register_buffer("which", torch.tensor([0] * heads + [1] * kv_heads), persistent=False)

    which: Tensor

    def forward(self, qk: Tensor) -> Tensor:
        """[T, heads + kv_heads, head_dim] → the same shape in fp32."""
        return F.rms_norm(qk.float(), self.size, None, self.eps) * self.weight[self.which]
