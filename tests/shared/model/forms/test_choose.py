"""Which form a name stands for, what is refused, and what `auto` picks."""

from collections.abc import Callable

import pytest
import torch
from structlog.testing import capture_logs

from headrace.shared.errors import ConfigError
from headrace.shared.kernels import library
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.forms.choose import FORMS, Wanted, choose_profile

CONFIG = ModelConfig(
    vocab=64,
    hidden=64,
    intermediate=64,
    heads=2,
    kv_heads=1,
    head_dim=32,
    context=64,
    layers=(LayerConfig(rope=Rope(theta=10_000.0)),),
    norm_eps=1e-5,
    attention_scale=32**-0.5,
)


@pytest.fixture
def wanted() -> Callable[..., Wanted]:
    def make(name: str, device: str = "cpu", **more: object) -> Wanted:
        return Wanted(name=name, device=torch.device(device), config=CONFIG, **more)

    return make


@pytest.fixture
def with_kernels(monkeypatch) -> None:
    monkeypatch.setattr(library, "is_available", lambda: True)


@pytest.fixture
def no_kernels(monkeypatch) -> None:
    monkeypatch.setattr(library, "is_available", lambda: False)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", FORMS)
def test_without_kernels_every_form_is_the_one_in_torch(wanted, name):
    assert choose_profile(wanted(name, has_4bit=True)).name == name


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize(
    ("name", "has_4bit", "chosen"),
    [
        ("fp32", True, "fp32"),
        ("bf16", True, "bf16"),
        ("auto", True, "int4-vnni"),
        ("auto", False, "w8a8-vnni"),
        ("int4", True, "int4-vnni"),
        ("int4", False, "int4-vnni"),
        ("w8a8", True, "w8a8-vnni"),
    ],
)
def test_with_kernels_integer_forms_are_compiled(wanted, name, has_4bit, chosen):
    assert choose_profile(wanted(name, has_4bit=has_4bit)).name == chosen


@pytest.mark.usefixtures("with_kernels")
def test_kernels_that_cannot_take_the_blocks_are_left_alone(wanted):
    assert choose_profile(wanted("int4", block_tokens=24)).name == "int4"


def test_unknown_forms_are_refused(wanted):
    with pytest.raises(ConfigError, match=r"engine\.profile=fp8 is unknown; use auto, fp32, bf16, int4, w8a8"):
        choose_profile(wanted("fp8"))


def test_a_form_without_a_kernel_for_the_device_is_refused(wanted):
    with pytest.raises(ConfigError, match=r"engine\.profile=int4 has no kernel for device cuda"):
        choose_profile(wanted("int4", "cuda"))


@pytest.mark.parametrize("name", ["fp32", "bf16", "int4"])
def test_determinism_refuses_forms_that_do_not_keep_it(wanted, name):
    with pytest.raises(ConfigError, match=f"engine.profile={name} is not row-invariant"):
        choose_profile(wanted(name, deterministic=True))


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ["auto", "w8a8"])
def test_determinism_in_torch_has_a_name_of_its_own_in_cache_keys(wanted, name):
    assert choose_profile(wanted(name, deterministic=True)).name == "w8a8-exact"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    ("device", "features", "chosen"),
    [
        ("cuda", {}, "bf16"),
        ("cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, "fp32"),
        ("cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
        ("cpu", {"cpu_name": "AMD EPYC", "avx512_bf16": True}, "bf16"),
        ("cpu", {"cpu_name": "AMD EPYC", "avx512_bf16": False}, "fp32"),
        ("cpu", {}, "fp32"),
    ],
)
def test_without_kernels_auto_follows_the_device_and_says_so(monkeypatch, wanted, device, features, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)

    with capture_logs() as logs:
        found = choose_profile(wanted("auto", device))

    assert found.name == chosen
    (event,) = logs
    assert {key: event[key] for key in ("event", "profile", "asked", "device")} == {
        "event": "profile_chosen",
        "profile": chosen,
        "asked": "auto",
        "device": device,
    }
