"""Block decoders are bit-equal to the gguf package's, on random blocks and on every tensor of the real files."""

import gguf
import numpy as np
import pytest

from headrace.shared.model.weights.blocks import BLOCK_TYPES, decode, decode_affine
from headrace.shared.model.weights.gguf import open_gguf

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Bytes where fp16 numbers lie: filled with finite ones."""


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_random_blocks_decode_as_the_reference_does(number):
    kind, rng = BLOCK_TYPES[number], np.random.default_rng(number)
    if kind.elements == 1:
        values = rng.normal(size=4096).astype(np.float16 if kind.name == "F16" else np.float32)
        data = (values.view(np.uint32) >> 16).astype(np.uint16) if kind.name == "BF16" else values
        raw = data.view(np.uint8)
    else:
        blocks = rng.integers(0, 256, size=(777, kind.num_bytes), dtype=np.uint8)
        for start in HALVES[kind.name]:
            blocks[:, start : start + 2] = rng.normal(size=(777, 1)).astype("<f2").view(np.uint8)
        raw = blocks.reshape(-1)

    ours = decode(kind, raw)

    assert kind.name == gguf.GGMLQuantizationType(number).name
    assert (kind.elements, kind.num_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
    assert np.array_equal(ours, _reference(kind, number, raw))
    assert len(np.unique(ours)) > 100


@pytest.mark.parametrize("number", [number for number, kind in BLOCK_TYPES.items() if kind.affine])
def test_integers_stand_for_the_very_values(number):
    kind, rng = BLOCK_TYPES[number], np.random.default_rng(number)
    blocks = rng.integers(0, 256, size=(6, 512 // kind.elements, kind.num_bytes), dtype=np.uint8)
    for start in HALVES[kind.name]:
        blocks[..., start : start + 2] = rng.normal(size=(*blocks.shape[:2], 1)).astype("<f2").view(np.uint8)

    rows = decode_affine(kind, blocks.reshape(-1), (6, 512))

    assert rows.q.shape == (6, 512)
    assert rows.bits == 4 or rows.q.max() > 15
    assert rows.bits == 8 or rows.q.max() <= 15
    assert np.array_equal(rows.values().numpy().reshape(-1), _reference(kind, number, blocks.reshape(-1)))


def test_floats_and_vectors_have_no_integers():
    assert decode_affine(BLOCK_TYPES[0], np.zeros(4 * 64, np.uint8), (1, 64)) is None
    assert decode_affine(BLOCK_TYPES[8], np.zeros(34, np.uint8), (32,)) is None


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m"])
def test_every_tensor_of_the_real_files_decodes_as_the_reference_does(catalogue_model, name):
    file = open_gguf(catalogue_model(name).path)

    for tensor, entry in file.tensors.items():
        kind = BLOCK_TYPES[entry.kind]
        num_bytes = int(np.prod(entry.shape)) // kind.elements * kind.num_bytes
        raw = np.frombuffer(file.data, np.uint8, num_bytes, entry.offset)
        reference = _reference(kind, entry.kind, raw).reshape(entry.shape)
        assert np.array_equal(file.read(tensor).numpy(), reference), tensor


def _reference(kind, number, raw):
    if kind.name == "F32":
        return raw.view(np.float32)
    rows = raw.view(np.float16) if kind.name == "F16" else raw.reshape(-1, kind.num_bytes)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(number)).reshape(-1)
