"""SmolLM3: a Llama in which every fourth layer knows no positions."""

from collections.abc import Mapping

import msgspec

from headrace.shared.errors import ModelError
from headrace.shared.model.archs import dense_gguf, dense_hf
from headrace.shared.model.archs.family import Family, parse
from headrace.shared.model.archs.rope import read_rope, rope_from_hf
from headrace.shared.model.archs.windows import FULL, SLIDING, windows
from headrace.shared.model.config import LayerConfig, ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile

_THETA = 2_000_000.0
_INTERVAL = 4


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's `config.json` tells."""

    no_rope_layers: list[int] | None = None
    """0 for a layer without a rotary embedding, 1 for one with it."""
    no_rope_layer_interval: int = _INTERVAL
    use_sliding_window: bool = False
    sliding_window: int | None = None
    layer_types: list[str] | None = None


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    defaults = {"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    fields = dense_hf.read_fields(raw, **defaults)
    config = dense_hf.dense_config(fields, _layers(raw, fields.num_hidden_layers))
    return msgspec.structs.replace(
        config, qkv_bias=fields.attention_bias, out_bias=fields.attention_bias, mlp_bias=fields.mlp_bias
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `smollm3` file, which takes the interval for granted."""
    fields = dense_gguf.read_fields(file)
    dense_gguf.only_full(file, fields)
    rope = dense_gguf.read_rope(file, fields)
    turns = _every_but_nth(fields.block_count, _INTERVAL)
    return dense_gguf.dense_config(file, fields, [LayerConfig(rope=rope if turn else None) for turn in turns])


def _layers(raw: Mapping[str, object], num_layers: int) -> list[LayerConfig]:
    """Windows, where asked for, are the lot of the layers without positions."""
    own = parse(raw, _Own, "config.json")
    turns = own.no_rope_layers or _every_but_nth(num_layers, own.no_rope_layer_interval)
    if len(turns) < num_layers:
        raise ModelError(f"no_rope_layers names {len(turns)} layers, num_hidden_layers is {num_layers}")
    window = own.sliding_window if own.use_sliding_window else None
    types = own.layer_types or [FULL if turn or not window else SLIDING for turn in turns[:num_layers]]
    rope = rope_from_hf(read_rope(raw, _THETA))
    return [
        LayerConfig(rope=rope if turn else None, window=seen)
        for turn, seen in zip(turns, windows(types, num_layers, window), strict=False)
    ]


def _every_but_nth(num_layers: int, n: int) -> list[int]:
    return [int((index + 1) % n != 0) for index in range(num_layers)]


FAMILY = Family(
    hf=dense_hf.names(),
    gguf=dense_gguf.names(),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
    adapt_gguf=dense_gguf.join_pairs,
    order_gguf=dense_gguf.join_pairs,
)
