"""A family's GGUF file gives the logits of its Hugging Face directory; what a GGUF asks for beyond that is refused."""

import gguf
import pytest
import torch

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ModelError
from headrace.shared.model import registry
from headrace.shared.model.load import load_model

LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
NAMES = {
    "llama": LAYER | {"post_attention_layernorm": "ffn_norm"},
    "gemma3": LAYER
    | {
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
SIZES = {
    "context_length": 128,
    "embedding_length": 24,
    "feed_forward_length": 40,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
}
KEYS = {
    "llama": SIZES
    | {
        "block_count": 3,
        "attention.layer_norm_rms_epsilon": 2**-16,
        "rope.freq_base": 500.0,
        "rope.dimension_count": 8,
    },
    "gemma3": SIZES
    | {
        "block_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 100.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "attention.sliding_window": 6,
        "attention.sliding_window_pattern": 3,
        "final_logit_softcapping": 20.0,
    },
}


@pytest.fixture
def write_gguf(tmp_path):
    """Write weights, given under their Hugging Face names, as that family's converter does."""

    def make(family, weights, *, arch=None, rope_freqs=None, **changes):
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, arch or family)
        for key, value in (KEYS[family] | changes).items():
            if value is None:
                continue
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{arch or family}.{key}", value)
        for name, tensor in weights.items():
            writer.add_tensor(_gguf_name(family, name), _converted(family, name, tensor).contiguous().numpy())
        if rope_freqs is not None:
            writer.add_tensor("rope_freqs.weight", torch.tensor(rope_freqs).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


@pytest.fixture
def load_gguf():
    def make(path):
        files = ModelFiles(name="tiny", kind="gguf", path=path, fingerprint="f00d")
        return load_model(files, profile="fp32", device="cpu", max_context=0)

    return make


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_a_llama_file_gives_the_logits_of_its_directory(
    hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids, changes
):
    weights = write_hf(hf_config("llama", **changes))

    from_gguf = load_gguf(write_gguf("llama", weights))

    assert from_gguf.config == load_hf().config
    logits = make_bench(from_gguf.decoder).step({0: ids})
    torch.testing.assert_close(logits, make_bench(load_hf().decoder).step({0: ids}), rtol=0, atol=1e-6)


def test_a_gemma3_file_gives_the_logits_of_its_directory(
    hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids
):
    weights = write_hf(hf_config("gemma3", query_pre_attn_scalar=8))

    from_gguf = load_gguf(write_gguf("gemma3", weights))

    logits = make_bench(from_gguf.decoder).step({0: ids})
    torch.testing.assert_close(logits, make_bench(load_hf().decoder).step({0: ids}), rtol=0, atol=1e-6)


def test_a_gemma3_file_without_pattern_and_local_rope_gets_the_family_s(hf_config, write_hf, write_gguf, load_gguf):
    """Five sliding layers to one, local base 10,000: published files lack both keys."""
    weights = write_hf(hf_config("gemma3", num_hidden_layers=7))
    dropped = {"attention.sliding_window_pattern": None, "rope.freq_base_swa": None}

    layers = load_gguf(write_gguf("gemma3", weights, block_count=7, **dropped)).config.layers

    assert [layer.window for layer in layers] == [6, 6, 6, 6, 6, None, 6]
    assert [layer.rope.theta for layer in layers] == [1e4] * 5 + [1e6, 1e4]


def test_llama_weights_are_rounded_to_bf16(hf_config, write_hf, write_gguf, load_gguf):
    weights = write_hf(hf_config("llama"))
    weights["model.norm.weight"] = torch.full((24,), 1.001)

    decoder = load_gguf(write_gguf("llama", weights)).decoder

    assert decoder.final_norm.weight.tolist() == [1.0] * 24


def test_ready_made_rope_divisors_are_applied(hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids):
    """Dividing every frequency by four is linear scaling by four."""
    weights = write_hf(hf_config("llama", rope_scaling={"rope_type": "linear", "factor": 4.0}))

    decoder = load_gguf(write_gguf("llama", weights, rope_freqs=[4.0] * 4)).decoder

    expected = make_bench(load_hf().decoder).step({0: ids})
    torch.testing.assert_close(make_bench(decoder).step({0: ids}), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "expert_count"),
        ({"attention.sliding_window": 64}, "sliding_window"),
        ({"rope.dimension_count": 4}, "dimension_count"),
        ({"rope.scaling.type": "yarn"}, "rope.scaling.type 'yarn'"),
        ({"block_count": "three"}, r"tiny.gguf: Expected `int`, got `str` - at `\$.block_count`"),
        ({"block_count": None}, "missing required field `block_count`"),
        ({"block_count": 4}, r"9 missing tensors: layers\.3\.attention\.k"),
    ],
)
def test_what_a_llama_file_cannot_ask_for_is_refused_by_name(
    hf_config, write_hf, write_gguf, load_gguf, changes, message
):
    path = write_gguf("llama", write_hf(hf_config("llama")), **changes)

    with pytest.raises(ModelError, match=message):
        load_gguf(path)


def test_an_unknown_architecture_is_named(write_gguf, load_gguf):
    with pytest.raises(ModelError, match="architecture 'rwkv' is not supported; supported are llama, gemma3"):
        load_gguf(write_gguf("llama", {}, arch="rwkv"))


@pytest.mark.parametrize(("kind", "table"), [("hf", registry.HF), ("gguf", registry.GGUF)])
def test_every_registered_architecture_leads_to_its_family(kind, table):
    families = [registry.family(kind, name) for name in table]

    assert len({id(family) for family in families}) == len(families)


def _gguf_name(family, name):
    path, _, kind = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if path in top:
        return f"{top[path]}.{kind}"
    _, _, layer, rest = path.split(".", 3)
    return f"blk.{layer}.{NAMES[family][rest]}.{kind}"


def _converted(family, name, tensor):
    """What the converters do: Llama's q and k rows pair by pair, Gemma's norms with their one."""
    if family == "gemma3":
        return tensor + 1.0 if "norm" in name else tensor
    heads = {"q_proj": 6, "k_proj": 2}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
