"""Grouped-query attention of new rows over paged keys and values.

Knows blocks only as slot numbers and sequences only as groups of rows; the step brings both.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.config import ModelConfig
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.layers.norm import HeadNorm
from headrace.shared.model.layers.rope import Angles, rotate
from headrace.shared.model.step import AttentionGroup


class Attention(nn.Module):
    """Project, norm, rotate, write the new keys and values, then attend group by group."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale, self.softcap = config.attention_scale, config.attention_softcap
        self.attend = attend
        """A numeric form may bring its own."""
        rows = {"q": self.heads * self.head_dim, "k": self.kv_heads * self.head_dim, "v": self.kv_heads * self.head_dim}
        self.qkv = Linear(config.hidden, rows, bias=config.qkv_bias)
        self.o = Linear(rows["q"], {"o": config.hidden}, bias=config.out_bias)
        self.qk_norm = (
            HeadNorm(self.heads, self.kv_heads, self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        )

    def forward(
        self,
        x: Tensor,
        angles: Angles | None,
        slots: Tensor,
        groups: tuple[AttentionGroup, ...],
        kv: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[T, hidden] → [T, hidden]; writes the rows' keys and values to `slots` of `kv` first.

        Without `angles` nothing is rotated.
        """
        keys, values = kv
        qkv = self.qkv(x).view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        qk = self.qk_norm(qkv[:, : -self.kv_heads])
        qk = (qk if angles is None else rotate(qk, angles)).to(keys.dtype)
        keys.index_copy_(0, slots, qk[:, self.heads :])
        values.index_copy_(0, slots, qkv[:, -self.kv_heads :].to(values.dtype))
        attended = [self._attend(qk[group.rows, : self.heads], keys, values, group) for group in groups]
        out: Tensor = self.o(attended[0] if len(attended) == 1 else torch.cat(attended))
        return out

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup) -> Tensor:
        """[B * m, heads, head_dim] → [B * m, heads * head_dim]."""
        b, m, h, d = group.num_sequences, group.num_queries, self.kv_heads, self.head_dim
        # The query heads of one key head become query rows of it: with one new token per sequence this is many times
        # faster than a repeated or broadcast key head.
        q = q.view(b, m, h, -1, d).transpose(1, 2).reshape(b, h, -1, d)  # [B, kv_heads, m * group, head_dim]
        k = keys.index_select(0, group.slots).view(b, -1, h, d).transpose(1, 2)  # [B, kv_heads, N, head_dim]
        v = values.index_select(0, group.slots).view(b, -1, h, d).transpose(1, 2)
        out = self.attend(q, k, v, group.bias, self.scale, self.softcap)
        return out.view(b, h, m, -1, d).transpose(1, 2).reshape(b * m, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """Softmax attention, accumulated in fp32.

    q [B, H, M, D], k and v [B, H, N, D], bias broadcastable to [B, H, M, N] → [B, H, M, D].
    """
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(-1) @ v.float()).to(q.dtype)
