"""A family's GGUF file gives the logits of its Hugging Face directory; what a GGUF asks for beyond that is refused."""

import gguf
import msgspec
import pytest
import torch

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ModelError
from headrace.shared.model import registry
from headrace.shared.model.load import Terms, load_model
from headrace.shared.model.weights.gguf import open_gguf

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
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PLAIN = LAYER | {"post_attention_layernorm": "ffn_norm"}
NAMES = {
    "llama": PLAIN,
    "qwen2": PLAIN,
    "qwen3": PLAIN | QK_NORMS,
    "gemma2": LAYER | SANDWICH,
    "gemma3": LAYER | QK_NORMS | SANDWICH,
    "phi3": PLAIN | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "smollm3": PLAIN,
}
SIZES = {
    "block_count": 3,
    "context_length": 128,
    "embedding_length": 24,
    "feed_forward_length": 40,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 2**-16,
    "rope.freq_base": 500.0,
}
HEADS = {"attention.key_length": 8}
KEYS = {
    "llama": SIZES | HEADS | {"rope.dimension_count": 8},
    "qwen2": SIZES | {"embedding_length": 48},
    "qwen3": SIZES | HEADS,
    "gemma2": SIZES
    | HEADS
    | {"attention.sliding_window": 6, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0},
    "gemma3": SIZES
    | HEADS
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
    "phi3": SIZES | {"embedding_length": 48, "rope.dimension_count": 8, "attention.sliding_window": 6},
    "smollm3": SIZES | HEADS | {"block_count": 5, "rope.dimension_count": 8},
}
SHORT, LONG = [1.0, 1.5, 2.0, 2.5], [1.25, 2.0, 4.0, 8.0]


@pytest.fixture
def write_gguf(tmp_path):
    """Write weights, given under their Hugging Face names, as that family's converter does."""

    def make(family, weights, *, arch=None, extra=None, **changes):
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, arch or family)
        for key, value in (KEYS[family] | changes).items():
            if value is None:
                continue
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{arch or family}.{key}", value)
        for name, tensor in weights.items():
            writer.add_tensor(_gguf_name(family, name), _converted(family, name, tensor).contiguous().numpy())
        for name, values in (extra or {}).items():
            writer.add_tensor(name, torch.tensor(values).numpy())
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
        return load_model(files, Terms(profile="fp32", device="cpu"))

    return make


@pytest.fixture
def load_config():
    """The configuration alone, of a file that may lack its tensors."""

    def make(path):
        file = open_gguf(path)
        return registry.family("gguf", file.metadata["general.architecture"]).config_from_gguf(file)

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


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "phi3", "smollm3"])
def test_a_file_gives_the_logits_of_its_directory(
    hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids, family
):
    weights = write_hf(hf_config(family))

    from_gguf = load_gguf(write_gguf(family, weights))

    assert msgspec.structs.replace(from_gguf.config, norm_plus_one=False) == msgspec.structs.replace(
        load_hf().config, norm_plus_one=False
    )
    logits = make_bench(from_gguf.decoder).step({0: ids})
    torch.testing.assert_close(logits, make_bench(load_hf().decoder).step({0: ids}), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attn_factor", [None, 1.5])
def test_a_phi3_file_carries_its_longrope_as_tensors(
    hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids, attn_factor
):
    scaling = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": attn_factor}
    weights = write_hf(hf_config("phi3", rope_scaling=scaling, original_max_position_embeddings=16))
    keys = {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": attn_factor}

    path = write_gguf(
        "phi3", weights, extra={"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}, **keys
    )

    assert load_gguf(path).config == load_hf().config
    logits = make_bench(load_gguf(path).decoder).step({0: ids})
    torch.testing.assert_close(logits, make_bench(load_hf().decoder).step({0: ids}), rtol=0, atol=1e-6)


def test_a_phi3_file_may_turn_a_part_of_each_head(hf_config, write_hf, load_hf, write_gguf, load_gguf, make_bench, ids):
    weights = write_hf(hf_config("phi3", partial_rotary_factor=0.75))

    from_gguf = load_gguf(write_gguf("phi3", weights, **{"rope.dimension_count": 6}))

    assert from_gguf.config == load_hf().config
    logits = make_bench(from_gguf.decoder).step({0: ids})
    torch.testing.assert_close(logits, make_bench(load_hf().decoder).step({0: ids}), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("family", "num_layers", "scale"), [("gemma2", 46, 4), ("gemma3", 62, 4), ("gemma2", 26, 8)])
def test_the_largest_gemmas_scale_by_hidden_over_heads(write_gguf, load_config, family, num_layers, scale):
    """No key of a GGUF says so: 24 / 6 there, the head dimension of 8 everywhere else."""
    config = load_config(write_gguf(family, {}, block_count=num_layers))

    assert config.attention_scale == scale**-0.5


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

    decoder = load_gguf(write_gguf("llama", weights, extra={"rope_freqs.weight": [4.0] * 4})).decoder

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


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2", {"attention.sliding_window": 64}, "qwen2.attention.sliding_window"),
        ("smollm3", {"attention.sliding_window": 64}, "smollm3.attention.sliding_window"),
        ("qwen3", {"rope.scaling.type": "yarn"}, "rope.scaling.type 'yarn'"),
        ("phi3", {"rope.scaling.type": "longrope"}, "phi3.rope.scaling.type 'longrope' without factors"),
        ("smollm3", {"rope.dimension_count": 6}, "smollm3.rope.dimension_count below the head dimension"),
    ],
)
def test_what_another_file_cannot_ask_for_is_refused_by_name(write_gguf, load_config, family, changes, message):
    path = write_gguf(family, {}, **changes)

    with pytest.raises(ModelError, match=message):
        load_config(path)


def test_an_unknown_architecture_is_named(write_gguf, load_gguf):
    with pytest.raises(ModelError, match="architecture 'rwkv' is not supported; supported are llama, qwen2, "):
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
    """What the converters do: q and k rows of a Llama or SmolLM3 pair by pair, a Gemma's norms with their one."""
    if family.startswith("gemma"):
        return tensor + 1.0 if "norm" in name else tensor
    if family not in ("llama", "smollm3"):
        return tensor
    heads = {"q_proj": 6, "k_proj": 2}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
