"""Hugging Face directories: equal to a plain forward over the files, and what is odd about them is named."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ModelError
from headrace.shared.model.load import load_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
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
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA3 = LLAMA | {
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
CONFIGS = {
    "llama": LLAMA,
    "llama tied, with biases": LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama with llama3 rope": LLAMA | {"rope_scaling": LLAMA3},
    "llama with new-style rope": {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    | {"rope_parameters": LLAMA3 | {"rope_theta": 500.0}},
    "llama with old-style linear rope": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama without grouped heads": {k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")},
    "gemma3": GEMMA3,
    "gemma3 with attention softcap and biases": GEMMA3 | {"attn_logit_softcapping": 3.0, "attention_bias": True},
    "gemma3 with new-style rope and layer types": {k: v for k, v in GEMMA3.items() if "rope" not in k}
    | {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    },
}


@pytest.fixture
def write(tmp_path, randomized):
    """Write a directory with random weights; returns them."""

    def make(config, *, drop=(), extra=(), shards=1):
        weights = {name: torch.empty(shape) for name, shape in shapes(config).items() if name not in drop}
        weights |= {name: torch.empty(3) for name in extra}
        randomized(weights)
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
def load(tmp_path):
    def make():
        files = ModelFiles(name="tiny", kind="hf", path=tmp_path, fingerprint="f")
        return load_model(files, profile="fp32", device="cpu", max_context=0)

    return make


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_a_plain_forward(write, load, make_bench, ids, name):
    weights = write(CONFIGS[name], shards=2)
    bench = make_bench(load().decoder)

    got = torch.cat([bench.step({0: [token]}) for token in ids])
    whole = bench.step({1: ids})

    expected = reference(weights, CONFIGS[name], torch.tensor(ids))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(whole[0], expected[-1], rtol=0, atol=1e-4)
    assert got.argmax(-1).tolist() == expected.argmax(-1).tolist()
    assert expected.std() > 0.3


def test_missing_tensors_are_listed(write, load):
    write(LLAMA, drop=["model.norm.weight", "model.layers.1.self_attn.k_proj.weight"])

    with pytest.raises(ModelError, match=r"2 missing tensors: final_norm\.weight, layers\.1\.attention\.k\.weight"):
        load()


def test_unexpected_tensors_are_logged_and_known_leftovers_are_not(write, load):
    write(LLAMA, extra=["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"])

    with capture_logs() as logs:
        load()

    unexpected = [entry["names"] for entry in logs if entry["event"] == "weights_unexpected"]
    assert unexpected == [["model.layers.0.self_attn.q_norm.weight"]]


def test_a_tied_checkpoint_may_hold_its_head_twice(write, load, ids):
    config = LLAMA | {"tie_word_embeddings": True}
    write(config, extra=["lm_head.weight"])

    with capture_logs() as logs:
        load()

    assert not [entry for entry in logs if entry["event"] == "weights_unexpected"]


def test_a_shape_that_contradicts_the_configuration_is_refused(write, load, tmp_path):
    write(LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 44}))

    with pytest.raises(ModelError, match=r"mlp\.\w+\.weight has shape \[.*40.*\], the configuration implies \[.*44.*\]"):
        load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported"),
        ({"architectures": []}, "architecture None is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": "many"}, r"config.json: Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"num_attention_heads": 5}, "5 query heads of 8 elements do not divide among 2 key heads"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "llama3 needs low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(write, load, tmp_path, change, message):
    write(LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | change))

    with pytest.raises(ModelError, match=message):
        load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ({"layer_types": ["linear_attention"] * 4}, r"layer_types holds \['linear_attention'\]"),
    ],
)
def test_what_gemma_cannot_compute_is_refused_by_name(write, load, tmp_path, change, message):
    write(GEMMA3)
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3 | change))

    with pytest.raises(ModelError, match=message):
        load()


def test_integer_weights_are_refused(write, load, tmp_path):
    weights = write(LLAMA)
    save_file(weights | {"model.norm.weight": torch.ones(24, dtype=torch.int8)}, tmp_path / "model.safetensors")

    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as torch\.int8"):
        load()


def test_missing_and_broken_files_are_named(write, load, tmp_path):
    write(LLAMA)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load()

    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        load()


def shapes(config):
    """Names and shapes of a checkpoint's tensors."""
    is_gemma = config["architectures"] == ["Gemma3ForCausalLM"]
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config.get("head_dim", 4)
    q = config["num_attention_heads"] * d
    kv = config.get("num_key_value_heads", config["num_attention_heads"]) * d
    found = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if is_gemma else []
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= {f"{at}.{norm}.weight": (hidden,) for norm in norms}
        found |= {f"{at}.self_attn.{norm}.weight": (d,) for norm in ("q_norm", "k_norm") if is_gemma}
        for block, parts, biased in (
            ("self_attn", attention, config.get("attention_bias")),
            ("mlp", mlp, config.get("mlp_bias")),
        ):
            found |= {f"{at}.{block}.{part}.weight": shape for part, shape in parts.items()}
            found |= {f"{at}.{block}.{part}.bias": shape[:1] for part, shape in parts.items() if biased}
    return found


def reference(weights, config, ids):
    """Logits of every position by the book: no cache, one full attention matrix per head, files' own layout."""
    is_gemma = config["architectures"] == ["Gemma3ForCausalLM"]
    hidden, d, heads = config["hidden_size"], config.get("head_dim", 4), config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)

    def norm(x, name):
        weight = weights[f"{name}.weight"] + (1.0 if is_gemma else 0.0)
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.tensor(0.0))

    embed = weights["model.embed_tokens.weight"]
    x = embed[ids] * (math.sqrt(hidden) if is_gemma else 1.0)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        is_sliding = is_gemma and _is_sliding(config, i)
        h = norm(x, f"{at}.input_layernorm")
        q = linear(h, f"{at}.self_attn.q_proj").view(-1, heads, d)
        k = linear(h, f"{at}.self_attn.k_proj").view(-1, kv_heads, d)
        v = linear(h, f"{at}.self_attn.v_proj").view(-1, kv_heads, d)
        if is_gemma:
            q, k = norm(q, f"{at}.self_attn.q_norm"), norm(k, f"{at}.self_attn.k_norm")
        waves = _waves(config, d, is_sliding)
        mixed = _attend(_turn(q, waves), _turn(k, waves), v, config, is_sliding)
        mixed = linear(mixed.reshape(len(ids), -1), f"{at}.self_attn.o_proj")
        x = x + (norm(mixed, f"{at}.post_attention_layernorm") if is_gemma else mixed)
        h = norm(x, f"{at}.{'pre_feedforward' if is_gemma else 'post_attention'}_layernorm")
        act = (lambda g: torch.nn.functional.gelu(g, approximate="tanh")) if is_gemma else torch.nn.functional.silu
        mixed = linear(
            act(linear(h, f"{at}.mlp.gate_proj")) * linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj"
        )
        x = x + (norm(mixed, f"{at}.post_feedforward_layernorm") if is_gemma else mixed)
    logits = norm(x, "model.norm") @ weights.get("lm_head.weight", embed).T
    cap = config.get("final_logit_softcapping")
    return torch.tanh(logits / cap) * cap if cap else logits


def _is_sliding(config, i):
    if "layer_types" in config:
        return config["layer_types"][i] == "sliding_attention"
    return (i + 1) % config["sliding_window_pattern"] != 0


def _waves(config, d, is_sliding):
    """Radians per position of each pair of elements."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if "full_attention" in rope:
        rope = rope["sliding_attention" if is_sliding else "full_attention"]
    elif is_sliding:
        rope = {"rope_theta": config["rope_local_base_freq"]}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    kind = rope.get("rope_type", rope.get("type"))
    waves = []
    for i in range(d // 2):
        wave = theta ** (-2 * i / d)
        if kind == "linear":
            wave /= rope["factor"]
        if kind == "llama3":
            length, context = 2 * math.pi / wave, rope["original_max_position_embeddings"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            share = min(1.0, max(0.0, (context / length - low) / (high - low)))
            wave = (1 - share) * wave / rope["factor"] + share * wave
        waves.append(wave)
    return torch.tensor(waves, dtype=torch.float64)


def _turn(x, waves):
    angle = torch.arange(len(x), dtype=torch.float64)[:, None, None] * waves
    pairs = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((pairs.real, pairs.imag), dim=-1).float()


def _attend(q, k, v, config, is_sliding):
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * config.get("query_pre_attn_scalar", q.shape[-1]) ** -0.5
    if cap := config.get("attn_logit_softcapping"):
        scores = torch.tanh(scores / cap) * cap
    i, j = torch.arange(len(q))[:, None], torch.arange(len(q))[None, :]
    visible = (j <= i) & (i - j < (config["sliding_window"] if is_sliding else len(q)))
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(~visible, -math.inf).softmax(-1), v)
