"""The 8-bit form: exact products, errors within the rounding, smoothing that changes nothing by itself."""

import pytest
import torch

from headrace.shared.model.forms import replace
from headrace.shared.model.forms.products import FloatProduct, OneDnnProduct, has_integer_kernels, make_product
from headrace.shared.model.forms.smoothing import smooth
from headrace.shared.model.forms.w8a8 import W8A8, CoarseLinear, FineLinear, RowInvariant
from headrace.shared.model.layers.linear import Linear


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def linear(rng):
    linear = Linear(600, {"a": 48}, bias=True)
    for parameter in linear.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return linear


@pytest.mark.parametrize("num_rows", [1, 2, 16, 77])
@pytest.mark.parametrize("inputs", [24, 1024, 3000])
def test_both_ways_to_multiply_give_the_same_bits(rng, num_rows, inputs):
    """Weights are kept small where oneDNN would saturate and the form takes the other way."""
    largest = 127 if has_integer_kernels() else 63
    weight = torch.randint(-largest, largest + 1, (32, inputs), dtype=torch.int8, generator=rng)
    scale = torch.rand(32, generator=rng)
    x = torch.randint(0, 256, (num_rows, inputs), dtype=torch.uint8, generator=rng)

    found = FloatProduct(weight, scale)(x)

    assert torch.equal(OneDnnProduct(weight, scale)(x), found)
    exact = (x.double() - 128) @ weight.T.double() * scale
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)


def test_without_integer_kernels_floats_are_used(monkeypatch, linear):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)

    assert isinstance(make_product(linear.weight), FloatProduct)


@pytest.mark.parametrize(("kind", "error"), [(CoarseLinear, 0.02), (FineLinear, 0.01)])
def test_rounded_layers_stay_close(linear, rng, kind, error):
    x = torch.randn(9, 600, generator=rng)
    exact = linear(x)

    assert 0 < (kind(linear)(x) - exact).norm() / exact.norm() < error


@pytest.mark.parametrize("kind", [CoarseLinear, FineLinear])
def test_a_row_of_zeros_gives_the_bias(linear, kind):
    assert torch.equal(kind(linear)(torch.zeros(2, 600)), linear.bias.expand(2, -1))


def test_the_finer_rounding_of_inputs_is_as_good_as_none(rng):
    """With weights that are whole numbers already, only the inputs are rounded."""
    linear = Linear(600, {"a": 48}, bias=False)
    linear.weight.copy_(torch.randint(-127, 128, (48, 600), generator=rng))
    linear.weight[:, 0] = 127
    x = torch.randn(9, 600, generator=rng)
    exact = linear(x)

    assert (CoarseLinear(linear)(x) - exact).norm() / exact.norm() > 1e-3
    assert (FineLinear(linear)(x) - exact).norm() / exact.norm() < 1e-4


def test_smoothing_alone_changes_no_result(decoder, make_bench, ids):
    before = make_bench(decoder).step({0: ids})
    norm = decoder.layers[1].mlp_norm.weight.clone()
    smooth(decoder, decoder)

    torch.testing.assert_close(make_bench(decoder).step({0: ids}), before, rtol=0, atol=1e-4)
    assert not torch.allclose(decoder.layers[1].mlp_norm.weight, norm, rtol=0.1)


def test_a_large_tied_head_is_rounded_like_any(monkeypatch, make_decoder):
    monkeypatch.setattr(replace, "_LARGE_HEAD_BYTES", 100)
    decoder = make_decoder(tie=True)

    RowInvariant().apply(decoder)

    assert isinstance(decoder.head, FineLinear)


@pytest.mark.parametrize("form", [W8A8(), RowInvariant()], ids=lambda form: form.name)
def test_the_form_rounds_and_no_more(decoder, make_bench, ids, form):
    exact = make_bench(decoder).step({0: ids})
    form.apply(decoder)

    rounded = make_bench(decoder, dtype=form.kv_dtype).step({0: ids})

    kinds = [type(module) for module in decoder.modules() if isinstance(module, CoarseLinear | FineLinear | Linear)]
    assert (kinds.count(CoarseLinear), kinds.count(FineLinear), kinds.count(Linear)) == (3 * 3, 3 + 1, 0)
    assert 0 < (rounded - exact).abs().max() / exact.std() < 0.3
