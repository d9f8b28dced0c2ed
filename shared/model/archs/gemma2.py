"""Gemma 2: softcaps on scores and logits, norms before and after, every second layer with a window.

What it shares with Gemma 3 stands here.
"""

from collections.abc import Mapping

import msgspec

from headrace.shared.model.archs import dense_gguf, dense_hf
from headrace.shared.model.archs.family import Family, gguf_fields, parse, refuse
from headrace.shared.model.archs.rope import read_rope, rope_from_hf
from headrace.shared.model.archs.windows import every_nth_full, windows
from headrace.shared.model.config import LayerConfig, ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile

_ACTIVATION = "gelu_pytorch_tanh"
_PATTERN = 2
_LAYERS_OF_27B = 46
"""The one size whose attention scale follows hidden / heads instead of the head dimension; its GGUF does not say so."""


class GemmaFields(msgspec.Struct, frozen=True, kw_only=True):
    """What only `config.json` of a Gemma tells."""

    sliding_window: int = 4096
    layer_types: list[str] | None = None
    query_pre_attn_scalar: float = 256.0
    hidden_activation: str = _ACTIVATION
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None


class GemmaKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What only a GGUF file of a Gemma tells."""

    attention_softcap: float | None = msgspec.field(name="attn_logit_softcapping", default=None)
    final_softcap: float | None = msgspec.field(name="final_logit_softcapping", default=None)


def as_gemma(config: ModelConfig) -> ModelConfig:
    """What all Gemmas do, in whatever file."""
    return msgspec.structs.replace(config, activation="gelu_tanh", embed_scale=config.hidden**0.5, sandwich_norms=True)


def gemma_from_hf(
    fields: dense_hf.HfFields, own: GemmaFields, layers: list[LayerConfig], *, qk_norm: bool
) -> ModelConfig:
    """A Gemma from its `config.json`, whose file stores norms less one. Raises ModelError."""
    refuse(f"hidden_activation {own.hidden_activation!r}", unless=own.hidden_activation == _ACTIVATION)
    refuse("use_bidirectional_attention", unless=not own.use_bidirectional_attention)
    return msgspec.structs.replace(
        as_gemma(dense_hf.dense_config(fields, layers)),
        attention_scale=own.query_pre_attn_scalar**-0.5,
        norm_plus_one=True,
        qk_norm=qk_norm,
        qkv_bias=fields.attention_bias,
        out_bias=fields.attention_bias,
        attention_softcap=own.attn_logit_softcapping,
        final_softcap=own.final_logit_softcapping,
    )


def read_fields(raw: Mapping[str, object], max_position_embeddings: int) -> dense_hf.HfFields:
    """The shared fields with Gemma's defaults; `hidden_act` is left over from older files and means nothing."""
    defaults = {"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 4}
    raw = {key: value for key, value in raw.items() if key != "hidden_act"}
    return dense_hf.read_fields(raw, max_position_embeddings=max_position_embeddings, **defaults)


def gguf_scale(fields: dense_gguf.GgufFields, layers_of_27b: int) -> float:
    """The factor on attention scores, which no file names."""
    is_27b = fields.block_count == layers_of_27b
    per_head = fields.embedding_length / fields.heads if is_27b else fields.size_of_head
    return float(per_head**-0.5)


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = read_fields(raw, 8192)
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    own = parse(caps | dict(raw), GemmaFields, "config.json")
    types = own.layer_types or every_nth_full(fields.num_hidden_layers, _PATTERN)
    rope = rope_from_hf(read_rope(raw))
    layers = dense_hf.windowed(rope, windows(types, fields.num_hidden_layers, own.sliding_window))
    return gemma_from_hf(fields, own, layers, qk_norm=False)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `gemma2` file, whose norms carry their one already."""
    fields = dense_gguf.read_fields(file, **{"attention.sliding_window": 4096})
    own = parse(gguf_fields(file), GemmaKeys, str(file.path))
    types = every_nth_full(fields.block_count, _PATTERN)
    rope = dense_gguf.read_rope(file, fields)
    layers = dense_hf.windowed(rope, windows(types, fields.block_count, fields.window))
    return msgspec.structs.replace(
        as_gemma(dense_gguf.dense_config(file, fields, layers)),
        attention_scale=gguf_scale(fields, _LAYERS_OF_27B),
        attention_softcap=own.attention_softcap,
        final_softcap=own.final_softcap,
    )


FAMILY = Family(
    hf=dense_hf.names(dense_hf.SANDWICH_NORMS),
    gguf=dense_gguf.names(dense_gguf.SANDWICH_NORMS),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
