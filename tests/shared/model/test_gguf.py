"""The GGUF container: what the gguf package writes is read back, and broken files are refused."""

import gguf
import numpy as np
import pytest

from headrace.shared.errors import ModelError
from headrace.shared.model.weights.gguf import open_gguf


@pytest.fixture
def path(tmp_path):
    """A file with a scalar of every kind, short and long arrays, and two tensors."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_bool("flag", False)
    writer.add_int16("small", -5)
    writer.add_float64("double", 0.1)
    writer.add_array("short", [1, 2, 3])
    writer.add_array("words", ["a", "bé"])
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(2000)])
    writer.add_array("tokenizer.ggml.scores", [float(i) for i in range(2000)])
    writer.add_string("last", "ünd")
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    rows = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_is_read_and_vocabulary_skipped(path):
    metadata = open_gguf(path).metadata

    assert metadata == {
        "general.architecture": "llama",
        "llama.block_count": 3,
        "llama.rope.freq_base": 1e5,
        "flag": False,
        "small": -5,
        "double": 0.1,
        "short": [1, 2, 3],
        "words": ["a", "bé"],
        "last": "ünd",
    }


def test_tensors_are_read_as_the_reference_reads_them(path):
    file = open_gguf(path)
    reference = {t.name: t for t in gguf.GGUFReader(path).tensors}

    assert set(file.tensors) == set(reference)
    assert file.read("plain").tolist() == [[0, 1, 2], [3, 4, 5]]
    packed = gguf.quants.dequantize(reference["packed"].data, reference["packed"].tensor_type)
    assert np.array_equal(file.read("packed").numpy(), packed)


def test_a_file_cut_anywhere_is_refused(path, tmp_path):
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"

    for length in [0, 3, 4, 11, 24, 40, 100, 5000, len(whole) // 2, len(whole) - 200]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            list(open_gguf(cut).items())


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" + bytes(100))

    with pytest.raises(ModelError, match="not a little-endian GGUF"):
        open_gguf(tmp_path / "x.gguf")


def test_an_encoding_nobody_decodes_is_named(path, tmp_path):
    """IQ2_XXS, number 16, written over the type of `plain`."""
    data = path.read_bytes().replace(b"plain\x02\x00\x00\x00", b"plain\x02\x00\x00\x00", 1)
    at = data.index(b"plain\x02") + len(b"plain") + 4 + 16
    (tmp_path / "odd.gguf").write_bytes(data[:at] + (16).to_bytes(4, "little") + data[at + 4 :])

    with pytest.raises(ModelError, match="tensor plain has type number 16; known are F32"):
        open_gguf(tmp_path / "odd.gguf").read("plain")


@pytest.mark.model
def test_the_default_model_is_read_as_the_reference_reads_it(catalogue_model):
    path = catalogue_model("smollm2-135m-instruct").path
    file, reference = open_gguf(path), gguf.GGUFReader(path)

    for tensor in reference.tensors:
        entry = file.tensors[tensor.name]
        assert entry.shape == tuple(reversed(tensor.shape.tolist()))
        assert (entry.kind, entry.offset) == (tensor.tensor_type, tensor.data_offset)
    for key, value in file.metadata.items():
        assert reference.fields[key].contents() == value
