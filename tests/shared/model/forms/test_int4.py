"""The 4-bit form: the file's own integers where it has them, and nothing rounded that it holds finer."""

import pytest
import torch

from headrace.shared.model.forms.dense import PackedLinear
from headrace.shared.model.forms.int4 import Int4, Int4Linear
from headrace.shared.model.weights.affine import quantise_rows

CPU = torch.device("cpu")
WIDE = {"hidden": 64, "intermediate": 96, "heads": 8, "head_dim": 8}


@pytest.fixture
def wide(make_decoder):
    """A decoder whose every layer the kernel can take."""
    return make_decoder(**WIDE)


def test_a_layer_computes_with_its_integers(wide):
    linear = wide.layers[0].mlp.gate_up
    affine = quantise_rows(linear.weight, 4)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))

    found = Int4Linear(affine, None)(x)

    expected = x @ affine.values().T
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() / expected.norm() < 0.01


def test_a_bias_is_added(make_decoder):
    linear = make_decoder(gemma=True, **WIDE).layers[0].mlp.down
    affine, x = quantise_rows(linear.weight, 4), torch.zeros(2, 3, 96)

    assert torch.equal(Int4Linear(affine, linear.bias)(x), linear.bias.bfloat16().expand(2, 3, -1))


def test_weights_without_blocks_are_all_rounded(wide, make_bench, ids):
    exact = make_bench(wide).step({0: ids})
    Int4(CPU).apply(wide)

    rounded = make_bench(wide, dtype=torch.bfloat16).step({0: ids})

    assert sum(isinstance(module, Int4Linear) for module in wide.modules()) == 3 * 4
    assert isinstance(wide.head, PackedLinear)
    assert 0 < (rounded - exact).abs().max() / exact.std() < 1.0


def test_blocks_are_used_and_finer_tensors_kept(wide):
    first = wide.layers[0]
    first.mlp.down.affine = quantise_rows(first.mlp.down.weight, 4)
    first.mlp.gate_up.affine = quantise_rows(first.mlp.gate_up.weight, 8)
    Int4(CPU).apply(wide)

    assert isinstance(first.mlp.down, Int4Linear)
    for kept in (first.mlp.gate_up, first.attention.qkv, wide.layers[1].mlp.down):
        assert isinstance(kept, PackedLinear)
        assert kept.dtype == torch.bfloat16


def test_shapes_the_kernel_cannot_take_stay_dense(make_decoder):
    narrow = make_decoder()
    Int4(CPU).apply(narrow)

    assert not any(isinstance(module, Int4Linear) for module in narrow.modules())
