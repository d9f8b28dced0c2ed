"""Qwen2 and Qwen2.5: biases on queries, keys and values, and windows on the upper layers if asked for."""

from collections.abc import Mapping

import msgspec

from headrace.shared.model.archs import dense_gguf, dense_hf
from headrace.shared.model.archs.family import Family, parse
from headrace.shared.model.archs.rope import read_rope, rope_from_hf
from headrace.shared.model.archs.windows import FULL, SLIDING, windows
from headrace.shared.model.config import LayerConfig, ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's `config.json` tells."""

    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None


def layers_from_hf(raw: Mapping[str, object], num_layers: int) -> list[LayerConfig]:
    """The layers of a Qwen; the first `max_window_layers` see everything."""
    own = parse(raw, _Own, "config.json")
    window = own.sliding_window if own.use_sliding_window else None
    types = own.layer_types or [
        SLIDING if window and index >= own.max_window_layers else FULL for index in range(num_layers)
    ]
    return dense_hf.windowed(rope_from_hf(read_rope(raw)), windows(types, num_layers, window))


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`, which does not mention the biases."""
    fields = dense_hf.read_fields(raw, max_position_embeddings=32_768, num_key_value_heads=32)
    config = dense_hf.dense_config(fields, layers_from_hf(raw, fields.num_hidden_layers))
    return msgspec.structs.replace(config, qkv_bias=True)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `qwen2` file."""
    fields = dense_gguf.read_fields(file)
    dense_gguf.only_full(file, fields)
    layer = LayerConfig(rope=dense_gguf.read_rope(file, fields))
    return dense_gguf.dense_config(file, fields, [layer] * fields.block_count)


FAMILY = Family(
    hf=dense_hf.names(),
    gguf=dense_gguf.names(),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
