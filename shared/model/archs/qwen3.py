"""The dense Qwen3 models: norms over each query and key head, heads of a size of their own."""

from collections.abc import Mapping

import msgspec

from headrace.shared.model.archs import dense_gguf, dense_hf, qwen2
from headrace.shared.model.archs.family import Family
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = dense_hf.read_fields(raw, max_position_embeddings=32_768, num_key_value_heads=32, head_dim=128)
    config = dense_hf.dense_config(fields, qwen2.layers_from_hf(raw, fields.num_hidden_layers))
    return msgspec.structs.replace(config, qk_norm=True, qkv_bias=fields.attention_bias, out_bias=fields.attention_bias)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `qwen3` file."""
    return msgspec.structs.replace(qwen2.config_from_gguf(file), qk_norm=True)


FAMILY = Family(
    hf=dense_hf.names(dense_hf.QK_NORMS),
    gguf=dense_gguf.names(dense_gguf.QK_NORMS),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
