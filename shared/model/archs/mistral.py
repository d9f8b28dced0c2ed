"""Mistral: a Llama whose layers all see the same window, or none."""

from collections.abc import Mapping

import msgspec

from headrace.shared.model.archs import dense_hf, llama
from headrace.shared.model.archs.family import Family, parse
from headrace.shared.model.archs.rope import read_rope, rope_from_hf
from headrace.shared.model.config import LayerConfig, ModelConfig


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's `config.json` tells."""

    sliding_window: int | None = 4096


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = dense_hf.read_fields(raw, max_position_embeddings=131_072, num_key_value_heads=8)
    own = parse(raw, _Own, "config.json")
    layer = LayerConfig(rope=rope_from_hf(read_rope(raw)), window=own.sliding_window)
    return dense_hf.dense_config(fields, [layer] * fields.num_hidden_layers)


FAMILY = Family(
    hf=dense_hf.names(),
    gguf=llama.FAMILY.gguf,
    config_from_hf=config_from_hf,
    config_from_gguf=llama.config_from_gguf,
    adapt_gguf=llama.FAMILY.adapt_gguf,
    order_gguf=llama.FAMILY.order_gguf,
)
