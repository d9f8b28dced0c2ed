"""Phi-3, Phi-3.5 and Phi-4: joined projections on disk, longrope, and heads that turn in part."""

from collections.abc import Mapping

import msgspec

from headrace.shared.errors import ModelError
from headrace.shared.model.archs import dense_gguf, dense_hf
from headrace.shared.model.archs.family import Family, gguf_fields, parse, refuse
from headrace.shared.model.archs.rope import divisors_of, longrope, longrope_amplitude, read_rope
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.weights.gguf import GGUFFile

_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's `config.json` tells."""

    sliding_window: int | None = None
    original_max_position_embeddings: int = 4096


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's GGUF files tell."""

    original: int = msgspec.field(name="rope.scaling.original_context_length", default=4096)
    amplitude: float | None = msgspec.field(name="rope.scaling.attn_factor", default=None)


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = dense_hf.read_fields(raw, max_position_embeddings=4096, rms_norm_eps=1e-5)
    own = parse(raw, _Own, "config.json")
    layer = LayerConfig(
        rope=_rope_from_hf(raw, fields, own.original_max_position_embeddings), window=own.sliding_window
    )
    return dense_hf.dense_config(fields, [layer] * fields.num_hidden_layers)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `phi3` file."""
    fields = dense_gguf.read_fields(file)
    layer = LayerConfig(rope=_rope_from_gguf(file, fields), window=fields.window or None)
    return dense_gguf.dense_config(file, fields, [layer] * fields.block_count)


def _rope_from_gguf(file: GGUFFile, fields: dense_gguf.GgufFields) -> Rope:
    """The factors of longrope are tensors; without them the embedding is a plain one."""
    own = parse(gguf_fields(file), _Keys, str(file.path))
    rotary = None if fields.rotary == fields.size_of_head else fields.rotary
    short, long = divisors_of(file, _SHORT), divisors_of(file, _LONG)
    if not short and not long:
        refuse(f"phi3.rope.scaling.type {fields.scaling!r} without factors", unless=fields.scaling == "none")
        return Rope(theta=fields.theta, rotary_dim=rotary)
    amplitude = own.amplitude or longrope_amplitude(fields.context_length / own.original, own.original)
    return longrope(fields.theta, short, long, own.original, amplitude, rotary)


def _rope_from_hf(raw: Mapping[str, object], fields: dense_hf.HfFields, original: int) -> Rope:
    """`su` is what older files call longrope."""
    rope = read_rope(raw)
    assert rope.rope_theta is not None, "read_rope fills it"
    share = rope.partial_rotary_factor or 1.0
    rotary = None if share == 1.0 else int(fields.size_of_head * share)
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return Rope(theta=rope.rope_theta, rotary_dim=rotary)
    if kind not in ("longrope", "su"):
        raise ModelError(f"rope_type {kind!r} is not supported; supported are default and longrope")
    grown = rope.factor or fields.max_position_embeddings / original
    amplitude = rope.attention_factor or longrope_amplitude(grown, original)
    return longrope(rope.rope_theta, rope.short_factor, rope.long_factor, original, amplitude, rotary)


FAMILY = Family(
    hf=dense_hf.names({"self_attn.qkv_proj": "attention.qkv", "mlp.gate_up_proj": "mlp.gate_up"}),
    gguf=dense_gguf.names({"attn_qkv": "attention.qkv", "ffn_up": "mlp.gate_up"}, ignored=frozenset({_SHORT, _LONG})),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
