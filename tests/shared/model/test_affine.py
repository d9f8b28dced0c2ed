"""Weights as integers: exact where a file has them, close where they are made, and in the decoder's own row order."""

import gguf
import numpy as np
import pytest
import torch

from headrace.shared.catalogue import ModelFiles
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.load import open_checkpoint
from headrace.shared.model.weights.affine import attach_affine, quantise_rows
from headrace.shared.model.weights.blocks import concatenate

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS = 64, 96, 96, 4, 2
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


@pytest.fixture
def write_gguf(tmp_path):
    """A llama of one layer with these encodings, Q4_1 for those not named; its head is the embedding."""

    def make(**kinds: str) -> ModelFiles:
        path, rng = tmp_path / "tiny.gguf", np.random.default_rng(0)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(64)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_block_count(1)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        matrices = {f"blk.0.{name}": shape for name, shape in SHAPES.items()} | {"token_embd": (VOCAB, HIDDEN)}
        for name, shape in matrices.items():
            kind = gguf.GGMLQuantizationType[kinds.get(name.removeprefix("blk.0."), "Q4_1")]
            rows = rng.normal(size=shape).astype(np.float32)
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(rows, kind), raw_dtype=kind)
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
            writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return ModelFiles(name="tiny", kind="gguf", path=path, fingerprint="f00d")

    return make


def test_each_layer_gets_the_integers_of_its_rows_in_its_own_order(write_gguf):
    """Up to the rounding to bf16, they are the weights the layer was filled with."""
    decoder = open_checkpoint(write_gguf(token_embd="Q8_0")).read(with_affine=True)

    linears = {name: module for name, module in decoder.named_modules() if isinstance(module, Linear)}
    assert len(linears) == 5
    for name, linear in linears.items():
        assert linear.affine.bits == (8 if name == "head" else 4), name
        assert torch.equal(linear.affine.values().bfloat16().float(), linear.weight), name
        assert not torch.equal(linear.affine.values(), linear.weight), name


def test_they_cost_nothing_when_not_asked_for(write_gguf):
    decoder = open_checkpoint(write_gguf()).read(with_affine=False)

    assert all(module.affine is None for module in decoder.modules() if isinstance(module, Linear))


@pytest.mark.parametrize("other", ["Q8_0", "F16"])
def test_a_joined_layer_of_unlike_parts_has_none(write_gguf, other):
    decoder = open_checkpoint(write_gguf(ffn_up=other)).read(with_affine=True)
    layer = decoder.layers[0]

    assert layer.mlp.gate_up.affine is None
    assert layer.mlp.down.affine.bits == 4


def test_integers_of_a_joined_tensor_are_cut_into_parts(make_decoder):
    decoder = make_decoder(hidden=HIDDEN)
    joined = quantise_rows(decoder.layers[0].attention.qkv.weight, 8)

    attach_affine(decoder, {"layers.0.attention.qkv.weight": joined}.get)

    assert torch.equal(decoder.layers[0].attention.qkv.affine.values(), joined.values())
    assert decoder.layers[1].attention.qkv.affine is None


@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 254)])
def test_rounding_misses_by_half_a_step_at_most(bits, steps):
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    rounded = quantise_rows(weight, bits)

    groups = weight.view(7, 3, 32)
    span = groups.amax(-1) - groups.amin(-1) if bits == 4 else 2 * groups.abs().amax(-1)
    assert (rounded.values() - weight).view(7, 3, 32).abs().le(span[..., None] / steps / 2 * 1.001).all()
    assert rounded.bits == bits


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_equal_values_are_kept(bits):
    weight = torch.tensor([[0.0] * 32 + [2.5] * 32])

    torch.testing.assert_close(quantise_rows(weight, bits).values(), weight)


def test_rows_join_only_in_one_width():
    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    four, eight = quantise_rows(weight, 4), quantise_rows(weight, 8)

    joined = concatenate([four, four])
    assert joined is not None
    assert torch.equal(joined.values(), torch.cat([four.values()] * 2))
    assert concatenate([four, eight]) is None
