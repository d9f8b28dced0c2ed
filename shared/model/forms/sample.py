"""A run of a filled decoder on a prompt of our own making, to see what its linear layers are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.shared.model.decoder import Decoder
from headrace.shared.model.step import AttentionGroup

_NUM_TOKENS = 256


def run_sample(
    decoder: Decoder, linears: Sequence[nn.Module], look: Callable[[nn.Module, tuple[Tensor, ...]], None]
) -> None:
    """Call `look(linear, (input,))` for each of `linears` with its input [tokens, inputs]."""
    hooks = [linear.register_forward_pre_hook(look) for linear in linears]
    with torch.inference_mode():
        decoder(_sample(decoder), _ShortCache(decoder))
    for hook in hooks:
        hook.remove()


def _sample(decoder: Decoder) -> "_OneChunk":
    """Random tokens, the same on every machine."""
    config = decoder.config
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab, (min(_NUM_TOKENS, config.context),), generator=rng)
    return _OneChunk(ids.to(decoder.embed.weight.device))


@dataclass(frozen=True, slots=True)
class _OneChunk:
    """One sequence from its first token on; its token at position i lies in slot i."""

    ids: Tensor

    @property
    def positions(self) -> Tensor:
        return torch.arange(len(self.ids), device=self.ids.device)

    @property
    def slots(self) -> Tensor:
        return self.positions

    @property
    def logit_rows(self) -> Tensor:
        return self.positions

    def groups(self, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> tuple[AttentionGroup, ...]:
        age = self.positions[:, None] - self.positions
        hidden = age < 0 if window is None else (age < 0) | (age >= window)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=age.device).masked_fill_(hidden, -torch.inf)
        bias = bias.repeat_interleave(heads_per_kv, dim=0)[None, None]
        return (AttentionGroup(slice(0, len(self.ids)), 1, len(self.ids), self.slots, bias),)


class _ShortCache:
    """Keys and values of one layer at a time: nothing is read back."""

    dtype = torch.float32

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        shape = (2, min(_NUM_TOKENS, config.context), config.kv_heads, config.head_dim)
        self._tensor = torch.zeros(shape, device=decoder.embed.weight.device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002  # every layer writes before it reads
        return self._tensor[0], self._tensor[1]
