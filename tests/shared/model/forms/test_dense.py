"""Floating-point forms: packing changes nothing, bf16 rounds and no more."""

import pytest
import torch

from headrace.shared.model.forms import replace
from headrace.shared.model.forms.dense import Dense, PackedLinear

FP32, BF16 = Dense("fp32", torch.float32), Dense("bf16", torch.bfloat16)


def test_the_packed_form_computes_what_the_plain_one_does(decoder, make_bench, ids):
    plain = make_bench(decoder).step({0: ids, 1: [5]})
    FP32.apply(decoder)

    torch.testing.assert_close(make_bench(decoder).step({0: ids, 1: [5]}), plain, rtol=0, atol=1e-5)
    assert sum(isinstance(module, PackedLinear) for module in decoder.modules()) == 3 * 4 + 1


def test_without_packing_the_form_is_the_same(monkeypatch, decoder, make_bench, ids):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = make_bench(decoder).step({0: ids})
    FP32.apply(decoder)

    assert torch.equal(make_bench(decoder).step({0: ids}), plain)


@pytest.mark.parametrize("has_packing", [True, False])
def test_bf16_rounds_and_no_more(monkeypatch, decoder, make_bench, ids, has_packing):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_packing)
    exact = make_bench(decoder).step({0: ids})
    BF16.apply(decoder)
    bench = make_bench(decoder, dtype=BF16.kv_dtype)

    rounded = bench.step({0: ids})

    assert BF16.kv_dtype == torch.bfloat16
    assert rounded.dtype == torch.float32
    error = (rounded - exact).abs().max() / exact.std()
    assert 0 < error < 0.15


def test_a_large_tied_head_is_not_copied(monkeypatch, make_decoder, make_bench, ids):
    monkeypatch.setattr(replace, "_LARGE_HEAD_BYTES", 100)
    tied, untied = make_decoder(tie=True), make_decoder(tie=False)
    for decoder in (tied, untied):
        BF16.apply(decoder)

    assert tied.head.weight is tied.embed.weight
    assert isinstance(untied.head, PackedLinear)
    assert make_bench(tied, dtype=torch.bfloat16).step({0: ids}).dtype == torch.float32
