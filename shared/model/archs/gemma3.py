"""The text models of the Gemma 3 family: five layers with a sliding window to each one without."""

from collections.abc import Mapping

import msgspec

from headrace.shared.errors import ModelError
from headrace.shared.model.archs import llama
from headrace.shared.model.archs.family import Family, Names, gguf_fields, parse, refuse
from headrace.shared.model.archs.rope import RopeFields, rope_from_gguf, rope_from_hf
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.weights.gguf import GGUFFile

_PATTERN = 6
"""Every sixth layer sees everything, unless a file says otherwise."""
_LOCAL_THETA = 10_000.0
_SLIDING, _FULL = "sliding_attention", "full_attention"
_LAYERS_OF_27B = 62
"""The one size whose attention scale follows hidden / heads instead of the head dimension; its GGUF does not say so."""


class _Hf(msgspec.Struct, frozen=True, kw_only=True):
    """What `config.json` tells; defaults as transformers has them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 256
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = _LOCAL_THETA
    rope_scaling: RopeFields | None = None
    rope_parameters: dict[str, RopeFields] | None = None
    """Newer files: by layer type."""
    sliding_window: int = 4096
    layer_types: list[str] | None = None
    sliding_window_pattern: int | None = None
    old_pattern: int | None = msgspec.field(name="_sliding_window_pattern", default=None)
    query_pre_attn_scalar: float = 256.0
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False
    tie_word_embeddings: bool = True


class _Gguf(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys `gemma3.*` tell."""

    context_length: int
    embedding_length: int
    feed_forward_length: int
    block_count: int
    heads: int = msgspec.field(name="attention.head_count")
    kv_heads: int = msgspec.field(name="attention.head_count_kv")
    key_length: int = msgspec.field(name="attention.key_length", default=256)
    eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    window: int = msgspec.field(name="attention.sliding_window")
    pattern: int = msgspec.field(name="attention.sliding_window_pattern", default=_PATTERN)
    theta: float = msgspec.field(name="rope.freq_base", default=1_000_000.0)
    local_theta: float = msgspec.field(name="rope.freq_base_swa", default=_LOCAL_THETA)
    scaling: str = msgspec.field(name="rope.scaling.type", default="none")
    scaling_factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    final_softcap: float | None = msgspec.field(name="final_logit_softcapping", default=None)


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    hf = parse(raw, _Hf, "config.json")
    refuse(f"hidden_activation {hf.hidden_activation!r}", unless=hf.hidden_activation == "gelu_pytorch_tanh")
    refuse("use_bidirectional_attention", unless=not hf.use_bidirectional_attention)
    by_type = hf.rope_parameters or {}
    full = rope_from_hf(by_type.get(_FULL) or hf.rope_scaling, hf.rope_theta)
    sliding = rope_from_hf(by_type.get(_SLIDING), hf.rope_local_base_freq)
    pattern = hf.sliding_window_pattern or hf.old_pattern or _PATTERN
    return ModelConfig(
        vocab=hf.vocab_size,
        hidden=hf.hidden_size,
        intermediate=hf.intermediate_size,
        heads=hf.num_attention_heads,
        kv_heads=hf.num_key_value_heads,
        head_dim=hf.head_dim,
        context=hf.max_position_embeddings,
        layers=_layers(hf.layer_types or _layer_types(hf.num_hidden_layers, pattern), hf.sliding_window, sliding, full),
        norm_eps=hf.rms_norm_eps,
        attention_scale=hf.query_pre_attn_scalar**-0.5,
        activation="gelu_tanh",
        tie=hf.tie_word_embeddings,
        embed_scale=hf.hidden_size**0.5,
        norm_plus_one=True,
        qk_norm=True,
        sandwich_norms=True,
        qkv_bias=hf.attention_bias,
        out_bias=hf.attention_bias,
        attention_softcap=hf.attn_logit_softcapping,
        final_softcap=hf.final_logit_softcapping,
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `gemma3` file, whose norms carry their one already."""
    gguf = parse(gguf_fields(file), _Gguf, str(file.path))
    full = rope_from_gguf(file, gguf.theta, gguf.scaling, gguf.scaling_factor)
    per_head = gguf.embedding_length / gguf.heads if gguf.block_count == _LAYERS_OF_27B else gguf.key_length
    return ModelConfig(
        vocab=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 1,
        hidden=gguf.embedding_length,
        intermediate=gguf.feed_forward_length,
        heads=gguf.heads,
        kv_heads=gguf.kv_heads,
        head_dim=gguf.key_length,
        context=gguf.context_length,
        layers=_layers(_layer_types(gguf.block_count, gguf.pattern), gguf.window, Rope(theta=gguf.local_theta), full),
        norm_eps=gguf.eps,
        attention_scale=per_head**-0.5,
        activation="gelu_tanh",
        tie="output.weight" not in file.tensors,
        embed_scale=gguf.embedding_length**0.5,
        qk_norm=True,
        sandwich_norms=True,
        final_softcap=gguf.final_softcap,
    )


def _layer_types(num_layers: int, pattern: int) -> list[str]:
    return [_FULL if (index + 1) % pattern == 0 else _SLIDING for index in range(num_layers)]


def _layers(kinds: list[str], window: int, sliding: Rope, full: Rope) -> tuple[LayerConfig, ...]:
    kinds_known = {_SLIDING: LayerConfig(rope=sliding, window=window), _FULL: LayerConfig(rope=full)}
    unknown = set(kinds) - set(kinds_known)
    if unknown:
        raise ModelError(f"layer_types holds {sorted(unknown)}; supported are {sorted(kinds_known)}")
    return tuple(kinds_known[kind] for kind in kinds)


FAMILY = Family(
    hf=Names(
        top=llama.FAMILY.hf.top,
        layer_prefix=llama.FAMILY.hf.layer_prefix,
        layer={
            **llama.FAMILY.hf.layer,
            "self_attn.q_norm": "attention.q_norm",
            "self_attn.k_norm": "attention.k_norm",
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "mlp_norm",
            "post_feedforward_layernorm": "post_mlp_norm",
        },
        ignored=llama.FAMILY.hf.ignored,
    ),
    gguf=Names(
        top=llama.FAMILY.gguf.top,
        layer_prefix=llama.FAMILY.gguf.layer_prefix,
        layer={
            **llama.FAMILY.gguf.layer,
            "attn_q_norm": "attention.q_norm",
            "attn_k_norm": "attention.k_norm",
            "post_attention_norm": "post_attention_norm",
            "post_ffw_norm": "post_mlp_norm",
        },
        ignored=llama.FAMILY.gguf.ignored,
    ),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
