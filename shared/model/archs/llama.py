"""The Llama family: Llama 2 and 3, SmolLM2; Mistral in GGUF files, which call it a llama."""

from collections.abc import Mapping

import msgspec
from torch import Tensor

from headrace.shared.model.archs import dense_gguf, dense_hf
from headrace.shared.model.archs.family import Family
from headrace.shared.model.archs.rope import read_rope, rope_from_hf
from headrace.shared.model.config import LayerConfig, ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = dense_hf.read_fields(raw, max_position_embeddings=2048)
    layer = LayerConfig(rope=rope_from_hf(read_rope(raw)))
    config = dense_hf.dense_config(fields, [layer] * fields.num_hidden_layers)
    return msgspec.structs.replace(
        config, qkv_bias=fields.attention_bias, out_bias=fields.attention_bias, mlp_bias=fields.mlp_bias
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `llama` file."""
    fields = dense_gguf.read_fields(file)
    dense_gguf.only_full(file, fields)
    layer = LayerConfig(rope=dense_gguf.read_rope(file, fields))
    return dense_gguf.dense_config(file, fields, [layer] * fields.block_count)


def adapt_gguf(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Undo the row order of q and k, and round to bf16.

    Llama checkpoints are bf16, and so are the weights behind the reference ids of SmolLM2-135M: rounded,
    log-probabilities agree with the reference to 5e-5; unrounded they differ by up to 0.05 and three of ten rows leave
    the reference ids. The profiles fp32 and bf16 then compute on the very same weights.
    """
    return dense_gguf.join_pairs(name, tensor.bfloat16().float(), config)


FAMILY = Family(
    hf=dense_hf.names(),
    gguf=dense_gguf.names(),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
    adapt_gguf=adapt_gguf,
    order_gguf=dense_gguf.join_pairs,
)
