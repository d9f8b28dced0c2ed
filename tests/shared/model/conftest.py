"""Tiny random models, built and on disk, a bench that runs sequences on them, and the catalogue's real models."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from headrace.shared.catalogue import ModelFiles, resolve
from headrace.shared.config import Model
from headrace.shared.engine.batch import Row, build_batch
from headrace.shared.engine.storage import KVStorage
from headrace.shared.errors import ModelError
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.load import LoadedModel, Terms, load_model

BLOCK_TOKENS = 4
BLOCKS_PER_SEQUENCE = 12
VOCAB = 61


def llama_config(**changes: object) -> ModelConfig:
    """Grouped heads, head_dim other than hidden / heads, tied."""
    fields: dict[str, object] = {
        "vocab": VOCAB,
        "hidden": 24,
        "intermediate": 40,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 8,
        "context": 48,
        "layers": (LayerConfig(rope=Rope(theta=10_000.0)),) * 3,
        "norm_eps": 1e-5,
        "attention_scale": 8**-0.5,
        "tie": True,
    }
    return ModelConfig(**(fields | changes))


def gemma_config(**changes: object) -> ModelConfig:
    """Every switch Gemma 3 turns, plus biases and softcaps; the window is shorter than the tests' sequences."""
    near, far = (
        LayerConfig(rope=Rope(theta=10_000.0), window=5),
        LayerConfig(rope=Rope(theta=1e6, kind="linear", factor=8.0)),
    )
    fields: dict[str, object] = {
        "layers": (near, near, far),
        "activation": "gelu_tanh",
        "embed_scale": 24**0.5,
        "qk_norm": True,
        "sandwich_norms": True,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "final_softcap": 30.0,
        "tie": False,
    }
    return llama_config(**(fields | changes))


CONFIGS = {
    "llama": llama_config(),
    "gemma": gemma_config(),
    "softcapped": gemma_config(attention_softcap=5.0),
}

HF_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2**-16,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
HF_GEMMA3 = HF_LLAMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 4,
    "rope_theta": 1e6,
    "rope_local_base_freq": 100.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 6,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 12,
    "final_logit_softcapping": 20.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
HF_FAMILIES = {
    "llama": HF_LLAMA,
    "qwen2": HF_LLAMA | {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 48},
    "qwen3": HF_LLAMA | {"architectures": ["Qwen3ForCausalLM"]},
    "gemma2": HF_LLAMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": 6,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
        "tie_word_embeddings": True,
    },
    "gemma3": HF_GEMMA3,
    "phi3": HF_LLAMA | {"architectures": ["Phi3ForCausalLM"], "hidden_size": 48, "sliding_window": 6},
    "smollm3": HF_LLAMA | {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 5},
}


def randomize(tensors: dict[str, Tensor], seed: int = 0) -> None:
    """Fill parameters so that each one shows in the logits: plain initial values hide biases and norms.

    All values are bf16 numbers, as in real checkpoints.
    """
    rng = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(tensors.items()):
        noise = torch.randn(tensor.shape, generator=rng)
        if tensor.dim() > 1:
            noise /= tensor.shape[-1] ** 0.5
        else:
            noise = 1 + 0.3 * noise if "norm" in name else 0.5 * noise
        tensor.copy_(noise.bfloat16())


class Bench:
    """Sequences on one decoder; their blocks lie scattered and out of order."""

    def __init__(self, decoder: Decoder, num_sequences: int = 8, dtype: torch.dtype = torch.float32) -> None:
        self.decoder = decoder
        num_blocks = num_sequences * BLOCKS_PER_SEQUENCE
        self.storage = KVStorage(decoder.config, num_blocks, BLOCK_TOKENS, dtype, torch.device("cpu"))
        # What was never written must never count.
        for index in range(len(decoder.config.layers)):
            for tensor in self.storage.layer(index):
                tensor.fill_(torch.nan)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(7)).tolist()
        self.tables = [order[i::num_sequences] for i in range(num_sequences)]
        self.lengths = [0] * num_sequences

    def step(self, chunks: dict[int, list[int]], *, wanted: bool = True) -> Tensor:
        """Feed new ids to sequences; logits after the last id of each, in the order given, if wanted."""
        rows = [Row(ids, self.lengths[i], self.tables[i], wanted) for i, ids in chunks.items()]
        with torch.inference_mode():
            logits = self.decoder(build_batch(rows, BLOCK_TOKENS, torch.device("cpu")), self.storage)
        for i, ids in chunks.items():
            self.lengths[i] += len(ids)
        return logits

    def keys(self, sequence: int, layer: int) -> Tensor:
        """Stored keys of a sequence in order, [tokens, kv_heads, head_dim]."""
        slots = [
            self.tables[sequence][p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
            for p in range(self.lengths[sequence])
        ]
        return self.storage.layer(layer)[0][slots]


@pytest.fixture(params=CONFIGS)
def decoder(request) -> Decoder:
    """One random decoder per set of switches."""
    decoder = Decoder(CONFIGS[request.param])
    randomize(dict(decoder.named_parameters()))
    return decoder


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def make_decoder() -> Callable[..., Decoder]:
    """A random decoder with these switches; `gemma` starts from Gemma's."""

    def make(*, gemma: bool = False, **changes: object) -> Decoder:
        decoder = Decoder(gemma_config(**changes) if gemma else llama_config(**changes))
        randomize(dict(decoder.named_parameters()))
        return decoder

    return make


@pytest.fixture
def ids() -> list[int]:
    return torch.randint(0, VOCAB, (23,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture
def hf_config() -> Callable[..., dict[str, object]]:
    """A `config.json` of one family with changes; None takes a key out."""

    def make(family: str, **changes: object) -> dict[str, object]:
        fields = HF_FAMILIES[family] | changes
        return {key: value for key, value in fields.items() if value is not None}

    return make


@pytest.fixture
def write_hf(tmp_path: Path) -> Callable[..., dict[str, Tensor]]:
    """Write a directory with random weights; returns them."""

    def make(config: dict[str, object], *, drop=(), extra=(), shards: int = 1) -> dict[str, Tensor]:
        weights = {name: torch.empty(shape) for name, shape in hf_shapes(config).items() if name not in drop}
        weights |= {name: torch.empty(3) for name in extra}
        randomize(weights)
        (tmp_path / "config.json").write_text(json.dumps(config))
        names = sorted(weights)
        files = {f"model-{i}.safetensors": names[i::shards] for i in range(shards)}
        if shards == 1:
            files = {"model.safetensors": names}
        else:
            index = {"weight_map": {name: file for file, part in files.items() for name in part}}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        for file, part in files.items():
            save_file({name: weights[name] for name in part}, tmp_path / file)
        return weights

    return make


@pytest.fixture
def load_hf(tmp_path: Path) -> Callable[..., LoadedModel]:
    """Load what `write_hf` wrote."""

    def make(*, profile: str = "fp32", device: str = "cpu", max_context: int = 0) -> LoadedModel:
        files = ModelFiles(name="tiny", kind="hf", path=tmp_path, fingerprint="f00d")
        return load_model(files, Terms(profile=profile, device=device, max_context=max_context))

    return make


def hf_shapes(config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors."""
    arch = config["architectures"][0].removesuffix("ForCausalLM")
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config.get("head_dim", 4)
    q = config["num_attention_heads"] * d
    kv = config.get("num_key_value_heads", config["num_attention_heads"]) * d
    found = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    if arch == "Phi3":
        attention = {"qkv_proj": (q + 2 * kv, hidden), "o_proj": (hidden, q)}
        mlp = {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}
    biased = {name for name in attention if config.get("attention_bias") or (arch == "Qwen2" and name != "o_proj")}
    biased |= set(mlp) if config.get("mlp_bias") else set()
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if arch in ("Gemma2", "Gemma3") else []
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= {f"{at}.{norm}.weight": (hidden,) for norm in norms}
        found |= {f"{at}.self_attn.{norm}.weight": (d,) for norm in ("q_norm", "k_norm") if arch in ("Gemma3", "Qwen3")}
        for block, parts in (("self_attn", attention), ("mlp", mlp)):
            found |= {f"{at}.{block}.{part}.weight": shape for part, shape in parts.items()}
            found |= {f"{at}.{block}.{part}.bias": shape[:1] for part, shape in parts.items() if part in biased}
    return found


@pytest.fixture(scope="session")
def catalogue_model() -> Callable[[str], ModelFiles]:
    """A model of the catalogue, which must have been pulled."""

    def find(name: str) -> ModelFiles:
        try:
            return resolve(name, Model().dir, check=False)
        except ModelError as error:
            pytest.fail(f"{error}; pull it, or leave these tests out with -m 'not model'")

    return find
