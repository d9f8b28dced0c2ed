"""What the `config.json` files of published models, spelled as the hub has them, come to."""

import json
from pathlib import Path

import pytest

from headrace.shared.errors import ModelError
from headrace.shared.model.config import Rope
from headrace.shared.model.registry import family

CONFIGS = json.loads((Path(__file__).parents[2] / "golden/hub-configs.json").read_text("utf-8"))
"""Fields that shape the decoder, as published; the 48 factors of Phi-4-mini are made up."""
PHI_4 = CONFIGS["Phi-4-mini"]


def read(name, **changes):
    raw = CONFIGS[name] | changes
    return family("hf", raw["architectures"][0]).config_from_hf(raw)


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_taken_over(name):
    raw, config = CONFIGS[name], read(name)

    assert (config.vocab, config.hidden, config.intermediate) == (
        raw["vocab_size"],
        raw["hidden_size"],
        raw["intermediate_size"],
    )
    assert (config.heads, config.kv_heads) == (raw["num_attention_heads"], raw["num_key_value_heads"])
    assert config.head_dim == raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    assert (config.context, config.norm_eps) == (raw["max_position_embeddings"], raw["rms_norm_eps"])
    assert len(config.layers) == raw["num_hidden_layers"]
    assert config.attention_scale == raw.get("query_pre_attn_scalar", config.head_dim) ** -0.5


def test_llama_3():
    config = read("Llama-3.1-8B")

    assert {layer.rope for layer in config.layers} == {
        Rope(theta=5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)
    }
    assert not any((config.tie, config.qkv_bias, config.out_bias, config.mlp_bias, config.qk_norm))


@pytest.mark.parametrize("window", [4096, None])
def test_mistral_has_one_window_or_none(window):
    config = read("Mistral-7B-v0.1", sliding_window=window)

    assert {layer.window for layer in config.layers} == {window}


def test_qwen_2_has_biases_that_no_field_names():
    config = read("Qwen2.5-0.5B")

    assert (config.qkv_bias, config.out_bias, config.tie) == (True, False, True)
    assert {(layer.window, layer.rope) for layer in config.layers} == {(None, Rope(theta=1e6))}


def test_qwen_windows_begin_above_max_window_layers():
    config = read("Qwen2.5-0.5B", use_sliding_window=True)

    assert [layer.window for layer in config.layers] == [None] * 21 + [32768] * 3


def test_qwen_3():
    config = read("Qwen3-0.6B")

    assert (config.qk_norm, config.qkv_bias, config.head_dim) == (True, False, 128)


def test_gemma_2_alternates_and_is_tied_though_no_field_says_so():
    config = read("gemma-2-2b")

    assert [layer.window for layer in config.layers] == [4096, None] * 13
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)
    assert (config.tie, config.norm_plus_one, config.sandwich_norms, config.qk_norm) == (True, True, True, False)
    assert (config.activation, config.embed_scale) == ("gelu_tanh", 48.0)


def test_gemma_3_has_two_bases():
    config = read("gemma-3-1b")

    assert [layer.window for layer in config.layers] == [*([512] * 5 + [None]) * 4, 512, 512]
    assert {(layer.window, layer.rope) for layer in config.layers} == {(512, Rope(theta=1e4)), (None, Rope(theta=1e6))}
    assert (config.attention_softcap, config.final_softcap, config.qk_norm) == (None, None, True)


def test_phi_3_of_4k_has_a_window_and_plain_rope():
    config = read("Phi-3-mini-4k")

    assert {(layer.window, layer.rope) for layer in config.layers} == {(2047, Rope(theta=1e4))}


@pytest.mark.parametrize("kind", [{"type": "longrope"}, {"rope_type": "longrope"}, {"type": "su"}])
def test_phi_4_turns_three_quarters_of_a_head_and_stretches(kind):
    """√(1 + ln 32 / ln 4096), as the context is 32 times the original one."""
    factors = {key: PHI_4["rope_scaling"][key] for key in ("short_factor", "long_factor")}

    rope = read("Phi-4-mini", rope_scaling=factors | kind).layers[0].rope

    assert (rope.rotary_dim, rope.original_context) == (96, 4096)
    assert (rope.divisors, rope.long_divisors) == (tuple(factors["short_factor"]), tuple(factors["long_factor"]))
    assert rope.amplitude == pytest.approx(1.190238)


@pytest.mark.parametrize(("given", "amplitude"), [({"factor": 1.0}, 1.0), ({"attention_factor": 1.3}, 1.3)])
def test_what_longrope_says_of_itself_goes_first(given, amplitude):
    rope = read("Phi-4-mini", rope_scaling=PHI_4["rope_scaling"] | given).layers[0].rope

    assert rope.amplitude == amplitude


def test_smollm_3_tells_every_fourth_layer_no_positions():
    config = read("SmolLM3-3B")

    assert [layer.rope for layer in config.layers] == [*[Rope(theta=5e6)] * 3, None] * 9
    assert {layer.window for layer in config.layers} == {None}
    assert config.tie


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "Qwen3-0.6B",
            {"layer_types": ["full_attention"] * 27},
            "layer_types names 27 layers, num_hidden_layers is 28",
        ),
        ("Qwen3-0.6B", {"layer_types": ["sliding_attention"] * 28}, "there is no sliding_window"),
        ("Qwen2.5-0.5B", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ("Qwen2.5-0.5B", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("Mistral-7B-v0.1", {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
        ("gemma-2-2b", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters by layer type"),
        ("gemma-2-2b", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ("Phi-4-mini", {"rope_scaling": {"type": "yarn"}}, "supported are default and longrope"),
        ("Phi-4-mini", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor and long_factor"),
        ("Phi-4-mini", {"partial_rotary_factor": 0.5}, "48 rope divisors for 32 frequencies"),
        ("Phi-4-mini", {"partial_rotary_factor": 1.5}, "192 of 128 elements"),
        ("SmolLM3-3B", {"no_rope_layers": [1, 0]}, "no_rope_layers names 2 layers"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(name, changes, message):
    with pytest.raises(ModelError, match=message):
        read(name, **changes)
