"""`config.json` and tensor names of a dense decoder as nearly all families have them: those of Llama.

A family takes what is here and replaces what it does differently.
"""

from collections.abc import Mapping, Sequence

import msgspec

from headrace.shared.model.archs.family import Names, parse, refuse
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope


class HfFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields all families share."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def size_of_head(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


def read_fields(raw: Mapping[str, object], **defaults: object) -> HfFields:
    """Read them; `defaults` are the family's, which its files may leave out. Raises ModelError."""
    fields = parse(defaults | dict(raw), HfFields, "config.json")
    refuse(f"hidden_act {fields.hidden_act!r}", unless=fields.hidden_act == "silu")
    return fields


def dense_config(fields: HfFields, layers: Sequence[LayerConfig]) -> ModelConfig:
    """A Llama of these sizes; biases are left to the family."""
    return ModelConfig(
        vocab=fields.vocab_size,
        hidden=fields.hidden_size,
        intermediate=fields.intermediate_size,
        heads=fields.num_attention_heads,
        kv_heads=fields.num_key_value_heads or fields.num_attention_heads,
        head_dim=fields.size_of_head,
        context=fields.max_position_embeddings,
        layers=tuple(layers),
        norm_eps=fields.rms_norm_eps,
        attention_scale=fields.size_of_head**-0.5,
        tie=fields.tie_word_embeddings,
    )


def windowed(rope: Rope | None, windows: Sequence[int | None]) -> list[LayerConfig]:
    """Layers that differ in their windows alone."""
    return [LayerConfig(rope=rope, window=window) for window in windows]


def names(layer: Mapping[str, str] | None = None) -> Names:
    """Llama's tensor names, with more or other ones within a layer."""
    return Names(
        top={"model.embed_tokens": "embed", "model.norm": "final_norm", "lm_head": "head"},
        layer_prefix="model.layers.",
        layer=_LAYER | dict(layer or {}),
        ignored=frozenset({"self_attn.rotary_emb.inv_freq"}),
    )


QK_NORMS = {"self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm"}
SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}
_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
