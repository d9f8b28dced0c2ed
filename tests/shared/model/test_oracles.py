"""Every dense family gives the logits of transformers, on tiny models with random parameters.

The configurations are spelled as files on the hub are, with `rope_theta` and `rope_scaling`; transformers 5 writes them
anew, with `rope_parameters`, and what it wrote is what is loaded.
"""

import json
import os
from functools import cache
from typing import NamedTuple

import pytest
import torch

from headrace.shared.catalogue import ModelFiles
from headrace.shared.model.load import Terms, load_model
from headrace.shared.model.registry import family

TOKENS = 43
"""Longer than every window and every original context below."""
TIE = 1e-3
"""Below this gap between the two best logits their order is left to rounding."""
SIZES: dict[str, object] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OWN_HEADS = {key: value for key, value in SIZES.items() if key != "head_dim"} | {"hidden_size": 48}
"""For families whose heads are hidden / heads wide."""
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
GEMMA2 = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "num_attention_heads": 4, "hidden_size": 64}
SMOLLM3 = {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
VARIANTS: dict[str, dict[str, object]] = {
    "llama 2": SIZES | LLAMA,
    "llama 3": SIZES
    | LLAMA
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama with biases": SIZES | LLAMA | {"attention_bias": True, "mlp_bias": True},
    "smollm2": OWN_HEADS | LLAMA | {"tie_word_embeddings": True},
    "mistral": SIZES | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7},
    "qwen2": OWN_HEADS | QWEN2 | WINDOWS | {"max_window_layers": 1, "tie_word_embeddings": True},
    "qwen2 without windows": OWN_HEADS | QWEN2 | {"use_sliding_window": False, "sliding_window": 7},
    "qwen3": SIZES | QWEN3,
    "qwen3 with biases and windows": SIZES | QWEN3 | WINDOWS | {"max_window_layers": 2, "attention_bias": True},
    "gemma 2": SIZES
    | GEMMA2
    | {
        "sliding_window": 7,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "gemma 3": SIZES
    | GEMMA3
    | {
        "num_hidden_layers": 7,
        "sliding_window": 7,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 12,
        "rope_theta": 5000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
    "phi-3 with a window": OWN_HEADS | PHI3 | {"rope_scaling": None, "sliding_window": 7},
    "phi-3 short": OWN_HEADS
    | PHI3
    | {
        "max_position_embeddings": 64,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
            "long_factor": [9.0, 9.0, 9.0, 9.0, 9.0, 9.0],
            "attention_factor": 1.19,
        },
    },
    "phi-3 longrope": OWN_HEADS
    | PHI3
    | {
        "original_max_position_embeddings": 16,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0],
            "long_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 4.0, 8.0],
        },
    },
    "smollm3": OWN_HEADS | SMOLLM3 | {"num_hidden_layers": 5, "tie_word_embeddings": True},
    "smollm3 with biases and windows": OWN_HEADS
    | SMOLLM3
    | WINDOWS
    | {"no_rope_layers": [1, 0, 1], "attention_bias": True, "mlp_bias": True},
}

pytestmark = pytest.mark.parametrize("name", VARIANTS)


class Oracle(NamedTuple):
    """One model as transformers computes it."""

    files: ModelFiles
    logits: torch.Tensor
    """[TOKENS, vocab]."""


@pytest.fixture(scope="session")
def ids():
    return torch.randint(3, 61, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory, ids):
    """Build, save and run a variant in transformers, once."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig, AutoModelForCausalLM

    @cache
    def build(name):
        fields = dict(VARIANTS[name])
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        _randomise(model)
        folder = tmp_path_factory.mktemp("oracle")
        model.save_pretrained(folder)
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        return Oracle(ModelFiles(name="tiny", kind="hf", path=folder, fingerprint="f00d"), logits)

    return build


@pytest.fixture
def make(oracle):
    """Our decoder on the same files."""
    return lambda name: load_model(oracle(name).files, Terms(profile="fp32", device="cpu")).decoder


def test_logits_are_those_of_transformers(oracle, make, make_bench, ids, name):
    expected = oracle(name).logits
    bench = make_bench(make(name))

    whole = bench.step({0: ids})[0]
    one_by_one = torch.cat([bench.step({1: [token]}) for token in ids])

    torch.testing.assert_close(whole, expected[-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(one_by_one, expected, rtol=0, atol=1e-4)
    best, second = expected.topk(2).values.unbind(-1)
    is_clear = best - second >= TIE
    assert torch.equal(one_by_one.argmax(-1)[is_clear], expected.argmax(-1)[is_clear])
    assert is_clear.sum() > TOKENS // 2
    assert expected.std() > 0.3


def test_both_spellings_of_a_configuration_mean_the_same(oracle, name):
    arch = family("hf", VARIANTS[name]["architectures"][0])
    written = json.loads((oracle(name).files.path / "config.json").read_text())

    assert "rope_parameters" in written
    assert "rope_scaling" not in written
    assert arch.config_from_hf(VARIANTS[name]) == arch.config_from_hf(written)


@pytest.mark.parametrize("splits", [(1,), (3, 8), (7, 12, 13, 30), (17, 33), (42,)])
def test_chunks_give_the_logits_of_the_whole(make, make_bench, ids, name, splits):
    bench = make_bench(make(name))
    whole = bench.step({0: ids})

    for start, end in zip((0, *splits), (*splits, TOKENS), strict=True):
        cut = bench.step({1: ids[start:end]})

    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-5)


def test_blocks_moved_to_a_fresh_storage_continue_bit_for_bit(make, make_bench, ids, name):
    decoder = make(name)
    here, there = make_bench(decoder), make_bench(decoder, num_sequences=5)
    here.step({2: ids[:-3]})
    there.lengths[4] = here.lengths[2]
    for source, target in zip(here.tables[2], there.tables[4], strict=True):
        there.storage.import_block(target, here.storage.export_block(source))

    for token in ids[-3:]:
        assert torch.equal(there.step({4: [token]}), here.step({2: [token]}))


def test_every_kind_of_parameter_shows_in_the_logits(make, make_bench, ids, name):
    """What could be dropped unseen would not be tested: each kind, shifted in one layer, moves the logits."""
    decoder = make(name)
    expected = make_bench(decoder).step({0: ids})

    for path, parameter in decoder.named_parameters():
        kept = parameter.clone()
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        shift = (make_bench(decoder).step({0: ids}) - expected).abs().max()
        parameter.copy_(kept)
        assert shift > 1e-3, path


@torch.no_grad()
def _randomise(model):
    """Plain initial values hide biases and norms: without them logits would stay exactly the same."""
    rng = torch.Generator().manual_seed(0)
    for path, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=rng)
        if parameter.dim() > 1:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        elif "norm" in path:
            parameter.add_(0.3 * noise)
        else:
            parameter.copy_(0.5 * noise)
