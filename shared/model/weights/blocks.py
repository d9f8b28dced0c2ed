"""Decoders of GGML's quantised blocks, bit-equal to the reference formulas in fp32.

Knows bytes and numbers, no file. Every decoder takes the blocks of a tensor as [num_blocks, block_bytes] uint8 and
gives [num_blocks, elements] fp32. All values are little-endian; sub-byte fields are described where they are unpacked.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_ROWS_AT_ONCE = 1 << 16
"""Blocks decoded in one go: keeps the temporaries of a large tensor in tens of megabytes."""


class BlockType(NamedTuple):
    """One tensor encoding of a GGUF file."""

    name: str
    elements: int
    """Elements per block."""
    num_bytes: int
    """Bytes per block."""
    decode: Callable[[Bytes], Floats]


def decode(kind: BlockType, data: Bytes) -> Floats:
    """Decode the flat bytes of a tensor into flat fp32."""
    blocks = data.reshape(-1, kind.num_bytes)
    out = np.empty((len(blocks), kind.elements), np.float32)
    for start in range(0, len(blocks), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        out[part] = kind.decode(blocks[part])
    return out.reshape(-1)


def _half(blocks: Bytes, start: int) -> Floats:
    """The fp16 at byte `start` of each block, as [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[…, n] bytes → […, 2n]: all low nibbles, then all high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32, copy=False)


def _f16(blocks: Bytes) -> Floats:
    return _half(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    words = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (words << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8.0)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    fifth = np.unpackbits(blocks[:, 2:6], axis=-1, bitorder="little")  # bit i belongs to element i
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | fifth << 4).astype(np.float32) - 16.0)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(blocks: Bytes) -> Floats:
    """Eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum."""
    packed = blocks[:, 4:16]
    low, mins, tail = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    # Sub-blocks 0-3: the low 6 bits of bytes 0-3 and 4-7. Sub-blocks 4-7: a nibble of bytes 8-11, with the two bits
    # left over in bytes 0-3 and 4-7 on top.
    scale = np.concatenate((low & 63, tail & 15 | low >> 6 << 4), axis=-1).astype(np.float32)
    minimum = np.concatenate((mins & 63, tail >> 4 | mins >> 6 << 4), axis=-1).astype(np.float32)
    # Each 32 bytes hold two sub-blocks: low nibbles, then high ones.
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    scaled = (_half(blocks, 0) * scale)[..., None] * q - (_half(blocks, 2) * minimum)[..., None]
    return scaled.reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    """Two halves of 128, each 64 bytes of low nibbles and 32 bytes of upper bit pairs; a scale per 16 elements."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    q = (low | pairs << 4).reshape(-1, 16, 16).astype(np.float32) - 32.0
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[..., None] * q).reshape(-1, 256)


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, _bf16),
}
"""By the type number in the file."""
