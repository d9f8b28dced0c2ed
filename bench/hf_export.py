"""A Llama-family GGUF file as a folder that Hugging Face's own code reads: what vLLM is given to serve."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from headrace.shared.model.archs.family import Family, Names
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.registry import family
from headrace.shared.model.weights.gguf import open_gguf
from headrace.shared.text.gguf_metadata import read_metadata
from headrace.shared.text.gguf_tokenizer import from_gguf, token_of


def export(source: Path, folder: Path) -> None:
    """Write bf16 weights, configuration and tokenizer; `config.json` comes last, as the sign of completeness."""
    file, llama = open_gguf(source), family("gguf", "llama")
    config, metadata = llama.config_from_gguf(file), read_metadata(source)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(entry for item in file.items() if (entry := _renamed(llama, config, *item)))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = from_gguf(metadata)
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))  # noqa: SLF001  # the product never writes one
    special = {f"{name}_token": token_of(metadata, name) for name in ("bos", "eos")}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    _write(folder / "config.json", {**_config(config), **ids})


def _renamed(llama: Family, config: ModelConfig, name: str, tensor: Tensor) -> tuple[str, Tensor] | None:
    ours = llama.gguf.ours(name)
    if ours is None:
        return None
    return _theirs(llama.hf, ours), llama.adapt_gguf(ours, tensor, config).to(torch.bfloat16).contiguous()


def _theirs(names: Names, ours: str) -> str:
    """The name on the hub of what we call `ours`."""
    path, _, kind = ours.rpartition(".")
    tops = {mine: theirs for theirs, mine in names.top.items()}
    if path in tops:
        return f"{tops[path]}.{kind}"
    _, number, inner = path.split(".", 2)
    within = {mine: theirs for theirs, mine in names.layer.items()}
    return f"{names.layer_prefix}{number}.{within[inner]}.{kind}"


def _config(config: ModelConfig) -> dict[str, object]:
    rope = config.layers[0].rope
    assert rope is not None, "every layer of a Llama rotates"
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": rope.theta,
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tie,
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "dtype": "bfloat16",
    }


def _write(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
