"""What a decoder is made of: every switch of the one generic decoder, as data.

Knows no file format and no family: `archs` translate a family's metadata into this, `decoder` builds from it.
"""

from typing import Literal, Self

import msgspec

from headrace.shared.errors import ModelError


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """One rotary embedding, half-split layout."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """`linear`: positions are divided by it. `llama3`: low frequencies are."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    """The context length the frequencies were trained for; read by `llama3` and by the choice of divisors."""
    divisors: tuple[float, ...] = ()
    """One more divisor per frequency; empty for none."""
    long_divisors: tuple[float, ...] = ()
    """Take the place of `divisors` in a model whose context exceeds `original_context`; empty to keep them."""
    amplitude: float = 1.0
    """Turned elements are multiplied by it."""
    rotary_dim: int | None = None
    """How many leading elements of a head turn, None for all; `weights.fill` puts the halves of a part where the halves
    of the whole would lie."""

    def at(self, context: int) -> Self:
        """The same for a model of this context, with its divisors chosen.

        One choice for all sequences: a key must be worth the same whatever is appended to its sequence later.
        """
        if not self.long_divisors:
            return self
        divisors = self.long_divisors if context > self.original_context else self.divisors
        return msgspec.structs.replace(self, divisors=divisors, long_divisors=())


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What may differ from layer to layer."""

    rope: Rope | None
    """None: queries and keys are not told their positions."""
    window: int | None = None
    """Key j is visible to query i only if i - j < window; None sees everything before it."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The switches of one model; sizes are counts of elements."""

    vocab: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Most tokens of one sequence."""
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    attention_scale: float
    activation: Literal["silu", "gelu_tanh"] = "silu"
    tie: bool = False
    """The output head is the embedding table."""
    embed_scale: float = 1.0
    norm_plus_one: bool = False
    """The file stores norm weights less one."""
    qk_norm: bool = False
    """RMS norm over each query and key head before the rotary embedding."""
    sandwich_norms: bool = False
    """Norms also after attention and after the MLP, before the residual is added."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attention_softcap: float | None = None
    """Scores become cap · tanh(score / cap) before the mask."""
    final_softcap: float | None = None
    """The same for logits."""

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim, self.context)
        if min(sizes) < 1 or not self.layers:
            raise ModelError(f"model sizes must be positive, got {sizes} and {len(self.layers)} layers")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ModelError(
                f"{self.heads} query heads of {self.head_dim} elements do not divide among {self.kv_heads} key heads"
            )
        for rope in {layer.rope for layer in self.layers if layer.rope is not None}:
            _check_rope(rope, self.head_dim)

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads


def _check_rope(rope: Rope, head_dim: int) -> None:
    rotary = head_dim if rope.rotary_dim is None else rope.rotary_dim
    if rotary % 2 or not 0 < rotary <= head_dim:
        raise ModelError(f"a rotary embedding over {rotary} of {head_dim} elements is not possible")
    for divisors in (rope.divisors, rope.long_divisors):
        if divisors and len(divisors) != rotary // 2:
            raise ModelError(f"{len(divisors)} rope divisors for {rotary // 2} frequencies")
