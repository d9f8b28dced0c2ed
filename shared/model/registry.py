"""Which family serves which architecture name; families are imported on first use."""

from importlib import import_module
from typing import Literal

from headrace.shared.errors import ModelError
from headrace.shared.model.archs.family import Family

_ARCHS = "headrace.shared.model.archs"
HF = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
}
"""`architectures` of a config.json → module under `archs`."""
GGUF = {name: name for name in ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3")}
"""`general.architecture` of a GGUF file → module under `archs`."""


def family(kind: Literal["hf", "gguf"], arch: object) -> Family:
    """The family of an architecture name; raises ModelError naming an unknown one."""
    table = HF if kind == "hf" else GGUF
    module = table.get(arch) if isinstance(arch, str) else None
    if module is None:
        raise ModelError(f"architecture {arch!r} is not supported; supported are {', '.join(table)}")
    found: Family = import_module(f"{_ARCHS}.{module}").FAMILY
    return found
