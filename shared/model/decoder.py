"""The one decoder: embedding, a stack of pre-norm (or sandwich-norm) layers, head; every family by switches.

Knows token ids, positions and slots of a step; not sequences, blocks, files or families.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.config import ModelConfig
from headrace.shared.model.layers.attention import Attention
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.layers.mlp import GatedMLP
from headrace.shared.model.layers.norm import RMSNorm
from headrace.shared.model.layers.rope import Angles, Rotary
from headrace.shared.model.step import AttentionGroup, KVCache, Step


class Embedding(nn.Module):
    """Token ids to scaled fp32 rows."""

    def __init__(self, vocab: int, hidden: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(vocab, hidden), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] → [T, hidden]."""
        rows = F.embedding(ids, self.weight).float()
        return rows if self.scale == 1.0 else rows * self.scale


class DecoderLayer(nn.Module):
    """Attention and MLP around one fp32 residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.post_attention_norm = _norm(config) if config.sandwich_norms else nn.Identity()
        self.mlp_norm = _norm(config)
        self.mlp = GatedMLP(config)
        self.post_mlp_norm = _norm(config) if config.sandwich_norms else nn.Identity()

    def forward(
        self,
        x: Tensor,
        angles: Angles | None,
        slots: Tensor,
        groups: tuple[AttentionGroup, ...],
        kv: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[T, hidden] fp32 → [T, hidden] fp32."""
        attended = self.attention(self.attention_norm(x), angles, slots, groups, kv)
        x = x + self.post_attention_norm(attended)
        mixed: Tensor = x + self.post_mlp_norm(self.mlp(self.mlp_norm(x)))
        return mixed


class Decoder(nn.Module):
    """A causal language model over paged keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocab, config.hidden, config.embed_scale)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in config.layers)
        self.final_norm = _norm(config)
        self.head: nn.Module = Linear(config.hidden, {"head": config.vocab}, bias=False)
        if config.tie:
            self.head.weight = self.embed.weight
        of_layers = [layer.rope and layer.rope.at(config.context) for layer in config.layers]
        ropes = list(dict.fromkeys(rope for rope in of_layers if rope is not None))
        self.rotary = nn.ModuleList(Rotary(rope, config.head_dim) for rope in ropes)
        self.rope_of_layer = [None if rope is None else ropes.index(rope) for rope in of_layers]

    def forward(self, step: Step, cache: KVCache) -> Tensor:
        """Compute all rows, writing their keys and values to `cache`; logits [R, vocab] fp32 of the wanted rows."""
        config = self.config
        windows = dict.fromkeys(layer.window for layer in config.layers)
        groups = {window: step.groups(window, config.heads_per_kv, cache.dtype) for window in windows}
        angles = [rotary(step.positions) for rotary in self.rotary]

        x = self.embed(step.ids)
        for index, layer in enumerate(self.layers):
            window, rope = config.layers[index].window, self.rope_of_layer[index]
            turn = None if rope is None else angles[rope]
            x = layer(x, turn, step.slots, groups[window], cache.layer(index))
        return self._logits(x.index_select(0, step.logit_rows))

    def _logits(self, x: Tensor) -> Tensor:
        """[R, hidden] → [R, vocab]."""
        if not len(x):
            return x.new_empty((0, self.config.vocab))
        logits: Tensor = self.head(self.final_norm(x)).float()
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _norm(config: ModelConfig) -> RMSNorm:
    return RMSNorm(config.hidden, config.norm_eps)
