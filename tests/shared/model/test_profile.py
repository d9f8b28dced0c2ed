"""Numeric forms: what is chosen, what is refused, and how far the results may lie apart."""

import pytest
import torch
from structlog.testing import capture_logs

from headrace.shared.errors import ConfigError
from headrace.shared.model import profile
from headrace.shared.model.profile import PROFILES, PackedLinear, choose_profile

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["int4", "w8a8"])
def test_forms_to_come_are_refused(name):
    with pytest.raises(ConfigError) as caught:
        choose_profile(name, CPU)

    assert str(caught.value) == f"engine.profile={name} is not available yet; use auto, fp32 or bf16"


def test_unknown_forms_are_refused():
    with pytest.raises(ConfigError, match=r"engine\.profile=fp8 is unknown; use auto, fp32 or bf16"):
        choose_profile("fp8", CPU)


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
def test_auto_follows_the_device_and_says_so(monkeypatch, device, features, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)

    with capture_logs() as logs:
        found = choose_profile("auto", torch.device(device))

    assert found.name == chosen
    assert logs == [
        {"event": "profile_chosen", "log_level": "info", "profile": chosen, "asked": "auto", "device": device}
    ]


def test_the_packed_form_computes_what_the_plain_one_does(decoder, make_bench, ids):
    plain = make_bench(decoder).step({0: ids, 1: [5]})
    PROFILES["fp32"].apply(decoder)

    torch.testing.assert_close(make_bench(decoder).step({0: ids, 1: [5]}), plain, rtol=0, atol=1e-5)
    assert sum(isinstance(module, PackedLinear) for module in decoder.modules()) == 3 * 4 + 1


def test_without_packing_the_form_is_the_same(monkeypatch, decoder, make_bench, ids):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = make_bench(decoder).step({0: ids})
    PROFILES["fp32"].apply(decoder)

    assert torch.equal(make_bench(decoder).step({0: ids}), plain)


@pytest.mark.parametrize("has_packing", [True, False])
def test_bf16_rounds_and_no_more(monkeypatch, decoder, make_bench, ids, has_packing):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_packing)
    exact = make_bench(decoder).step({0: ids})
    form = PROFILES["bf16"]
    form.apply(decoder)
    bench = make_bench(decoder, dtype=form.kv_dtype)

    rounded = bench.step({0: ids})

    assert form.kv_dtype == torch.bfloat16
    assert rounded.dtype == torch.float32
    error = (rounded - exact).abs().max() / exact.std()
    assert 0 < error < 0.15


def test_a_large_tied_head_is_not_copied(monkeypatch, make_decoder, make_bench, ids):
    monkeypatch.setattr(profile, "_LARGE_HEAD_BYTES", 100)
    tied, untied = make_decoder(tie=True), make_decoder(tie=False)
    for decoder in (tied, untied):
        PROFILES["bf16"].apply(decoder)

    assert tied.head.weight is tied.embed.weight
    assert isinstance(untied.head, PackedLinear)
    assert make_bench(tied, dtype=torch.bfloat16).step({0: ids}).dtype == torch.float32
