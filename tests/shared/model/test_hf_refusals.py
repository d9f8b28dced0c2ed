"""What is odd about a Hugging Face directory is named, not guessed around."""

import json

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from headrace.shared.errors import ModelError


def test_missing_tensors_are_listed(hf_config, write_hf, load_hf):
    write_hf(hf_config("llama"), drop=["model.norm.weight", "model.layers.1.self_attn.k_proj.weight"])

    with pytest.raises(ModelError, match=r"2 missing tensors: final_norm\.weight, layers\.1\.attention\.k\.weight"):
        load_hf()


def test_unexpected_tensors_are_logged_and_known_leftovers_are_not(hf_config, write_hf, load_hf):
    write_hf(
        hf_config("llama"),
        extra=["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"],
    )

    with capture_logs() as logs:
        load_hf()

    unexpected = [entry["names"] for entry in logs if entry["event"] == "weights_unexpected"]
    assert unexpected == [["model.layers.0.self_attn.q_norm.weight"]]


def test_a_tied_checkpoint_may_hold_its_head_twice(hf_config, write_hf, load_hf):
    write_hf(hf_config("llama", tie_word_embeddings=True), extra=["lm_head.weight"])

    with capture_logs() as logs:
        load_hf()

    assert not [entry for entry in logs if entry["event"] == "weights_unexpected"]


def test_a_shape_that_contradicts_the_configuration_is_refused(hf_config, write_hf, load_hf, tmp_path):
    write_hf(hf_config("llama"))
    (tmp_path / "config.json").write_text(json.dumps(hf_config("llama", intermediate_size=44)))

    with pytest.raises(
        ModelError, match=r"mlp\.\w+\.weight has shape \[.*40.*\], the configuration implies \[.*44.*\]"
    ):
        load_hf()


def test_a_joined_projection_that_contradicts_the_configuration_is_refused(hf_config, write_hf, load_hf, tmp_path):
    """Too many rows as well as too few: all of them must find a place."""
    weights = write_hf(hf_config("phi3"))
    name = "model.layers.0.self_attn.qkv_proj.weight"

    for rows in (79, 81):
        save_file(weights | {name: torch.ones(rows, 48)}, tmp_path / "model.safetensors")
        with pytest.raises(
            ModelError, match=rf"attention\.qkv\.weight has shape \[{rows}, 48\], .* implies \[80, 48\]"
        ):
            load_hf()


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
def test_what_cannot_be_computed_is_refused_by_name(hf_config, write_hf, load_hf, tmp_path, change, message):
    write_hf(hf_config("llama"))
    (tmp_path / "config.json").write_text(json.dumps(hf_config("llama") | change))

    with pytest.raises(ModelError, match=message):
        load_hf()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ({"layer_types": ["linear_attention"] * 4}, r"layer_types holds \['linear_attention'\]"),
    ],
)
def test_what_gemma_cannot_compute_is_refused_by_name(hf_config, write_hf, load_hf, tmp_path, change, message):
    write_hf(hf_config("gemma3"))
    (tmp_path / "config.json").write_text(json.dumps(hf_config("gemma3") | change))

    with pytest.raises(ModelError, match=message):
        load_hf()


def test_integer_weights_are_refused(hf_config, write_hf, load_hf, tmp_path):
    weights = write_hf(hf_config("llama"))
    save_file(weights | {"model.norm.weight": torch.ones(24, dtype=torch.int8)}, tmp_path / "model.safetensors")

    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as torch\.int8"):
        load_hf()


def test_missing_and_broken_files_are_named(hf_config, write_hf, load_hf, tmp_path):
    write_hf(hf_config("llama"))
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_hf()

    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        load_hf()
