"""What `load_model` promises beyond the weights themselves."""

from pathlib import Path

import pytest
import torch

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.model.load import Terms, load_model


def test_a_loaded_model_tells_its_form_and_origin(hf_config, write_hf, load_hf):
    write_hf(hf_config("llama"))

    loaded = load_hf(profile="bf16")

    assert (loaded.profile, loaded.kv_dtype, loaded.device.type) == ("bf16", torch.bfloat16, "cpu")
    assert loaded.fingerprint == "f00d"
    assert not any(parameter.requires_grad for parameter in loaded.decoder.parameters())


@pytest.mark.parametrize(("max_context", "context"), [(0, 128), (50, 50), (128, 128), (4096, 128)])
def test_the_context_can_be_cut_and_never_stretched(hf_config, write_hf, load_hf, max_context, context):
    write_hf(hf_config("llama"))

    loaded = load_hf(max_context=max_context)

    assert loaded.config.context == context
    assert loaded.decoder.config == loaded.config


def test_loading_twice_gives_the_same_logits_bit_for_bit(hf_config, write_hf, load_hf, make_bench, ids):
    write_hf(hf_config("gemma3"))

    first, second = (make_bench(load_hf().decoder).step({0: ids}) for _ in range(2))

    assert torch.equal(first, second)


def test_a_device_that_is_not_there_is_refused(hf_config, write_hf, load_hf, monkeypatch):
    write_hf(hf_config("llama"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(ConfigError, match=r"engine\.device=cuda, but this machine offers no CUDA device"):
        load_hf(device="cuda")
    with pytest.raises(ConfigError, match=r"engine\.device=tpu is unknown"):
        load_hf(device="tpu")
    assert load_hf(device="auto").device.type == "cpu"


def test_the_scripted_model_has_no_weights():
    files = ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="00")

    with pytest.raises(ModelError, match="scripted has no weights"):
        load_model(files, Terms(profile="fp32", device="cpu"))


def test_a_missing_file_is_named(tmp_path):
    files = ModelFiles(name="gone", kind="gguf", path=tmp_path / "gone.gguf", fingerprint="00")

    with pytest.raises(ModelError, match=r"gone\.gguf"):
        load_model(files, Terms(profile="fp32", device="cpu"))
