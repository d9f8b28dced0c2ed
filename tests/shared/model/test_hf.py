"""Hugging Face directories give the logits of a plain forward over their files."""

import math

import pytest
import torch

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"type": "linear", "factor": 4.0}
CASES = {
    "llama": {},
    "llama tied, with biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama with llama3 rope": {"rope_scaling": LLAMA3},
    "llama with new-style rope": {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 500.0}},
    "llama with old-style linear rope": {"rope_scaling": LINEAR},
    "llama without grouped heads": {"head_dim": None, "num_key_value_heads": None},
    "gemma3": {},
    "gemma3 with attention softcap and biases": {"attn_logit_softcapping": 3.0, "attention_bias": True},
    "gemma3 with new-style rope and layer types": {
        "rope_theta": None,
        "rope_local_base_freq": None,
        "rope_scaling": None,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    },
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_a_plain_forward(hf_config, write_hf, load_hf, make_bench, ids, name):
    config = hf_config(name.split()[0], **CASES[name])
    weights = write_hf(config, shards=2)
    bench = make_bench(load_hf().decoder)

    got = torch.cat([bench.step({0: [token]}) for token in ids])
    whole = bench.step({1: ids})

    expected = reference(weights, config, torch.tensor(ids))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(whole[0], expected[-1], rtol=0, atol=1e-4)
    assert got.argmax(-1).tolist() == expected.argmax(-1).tolist()
    assert expected.std() > 0.3


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
        mixed = linear(act(linear(h, f"{at}.mlp.gate_proj")) * linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
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
