"""Decoders of GGML's quantised blocks, bit-equal to the reference formulas in fp32.

Knows bytes and numbers, no file. Every decoder takes the blocks of a tensor as [num_blocks, block_bytes] uint8 and
gives [num_blocks, elements] fp32. All values are little-endian; sub-byte fields are described where they are unpacked.
Encodings that are an affine map of small integers, 32 at a time, can be had as these integers too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

GROUP = 32
"""Elements that share a scale and an offset."""
_ROWS_AT_ONCE = 1 << 16
"""Blocks decoded in one go: keeps the temporaries of a large tensor in tens of megabytes."""


@dataclass(frozen=True, slots=True)
class AffineRows:
    """A weight of small integers: value = scale · q + offset, exact in fp32, scale and offset shared by 32 inputs."""

    q: Tensor
    """[rows, inputs] uint8, 0..15 or 0..255."""
    scale: Tensor
    """[rows, inputs / 32] fp32."""
    offset: Tensor
    """[rows, inputs / 32] fp32."""
    bits: Literal[4, 8]

    def values(self) -> Tensor:
        """[rows, inputs] fp32."""
        q = self.q.view(*self.scale.shape, GROUP).float()
        return (self.scale[..., None] * q + self.offset[..., None]).view(self.q.shape)

    def map(self, pick: Callable[[Tensor], Tensor]) -> Self:
        """Some or all rows, in an order: `pick` acts on rows alone."""
        return replace(self, q=pick(self.q), scale=pick(self.scale), offset=pick(self.offset))


def concatenate(parts: Sequence[AffineRows]) -> AffineRows | None:
    """All rows of weights with equal inputs; None if their integers differ in width."""
    if len({part.bits for part in parts}) != 1:
        return None
    q, scale, offset = (
        torch.cat(tensors) for tensors in zip(*((part.q, part.scale, part.offset) for part in parts), strict=True)
    )
    return AffineRows(q, scale, offset, parts[0].bits)


class Affine(NamedTuple):
    """Blocks as integers."""

    q: Bytes
    """[num_blocks, elements]."""
    scale: Floats
    """[num_blocks, elements / 32]."""
    offset: Floats
    """[num_blocks, elements / 32]."""


class AffineBlocks(NamedTuple):
    """How an encoding yields its integers."""

    bits: Literal[4, 8]
    decode: Callable[[Bytes], Affine]


class BlockType(NamedTuple):
    """One tensor encoding of a GGUF file."""

    name: str
    elements: int
    """Elements per block."""
    num_bytes: int
    """Bytes per block."""
    decode: Callable[[Bytes], Floats]
    affine: AffineBlocks | None = None


def decode(kind: BlockType, data: Bytes) -> Floats:
    """Decode the flat bytes of a tensor into flat fp32."""
    blocks = data.reshape(-1, kind.num_bytes)
    out = np.empty((len(blocks), kind.elements), np.float32)
    for start in range(0, len(blocks), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        out[part] = kind.decode(blocks[part])
    return out.reshape(-1)


def decode_affine(kind: BlockType, data: Bytes, shape: tuple[int, ...]) -> AffineRows | None:
    """Decode the flat bytes of a matrix [rows, inputs] into its integers; None if the encoding has none."""
    if kind.affine is None or len(shape) != 2 or shape[1] % kind.elements:
        return None
    blocks = data.reshape(-1, kind.num_bytes)
    groups = kind.elements // GROUP
    q = np.empty((len(blocks), kind.elements), np.uint8)
    scale, offset = (np.empty((len(blocks), groups), np.float32) for _ in range(2))
    for start in range(0, len(blocks), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        q[part], scale[part], offset[part] = kind.affine.decode(blocks[part])
    by_group = (shape[0], shape[1] // GROUP)
    return AffineRows(
        torch.from_numpy(q).view(shape),
        torch.from_numpy(scale).view(by_group),
        torch.from_numpy(offset).view(by_group),
        kind.affine.bits,
    )


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


def _q4_0(blocks: Bytes) -> Affine:
    scale = _half(blocks, 0)
    return Affine(_nibbles(blocks[:, 2:]), scale, scale * -8.0)


def _q4_1(blocks: Bytes) -> Affine:
    return Affine(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Affine:
    fifth = np.unpackbits(blocks[:, 2:6], axis=-1, bitorder="little")  # bit i belongs to element i
    scale = _half(blocks, 0)
    return Affine(_nibbles(blocks[:, 6:]) | fifth << np.uint8(4), scale, scale * -16.0)


def _q8_0(blocks: Bytes) -> Affine:
    scale = _half(blocks, 0)
    return Affine(blocks[:, 2:] ^ np.uint8(0x80), scale, scale * -128.0)  # the flipped sign bit adds 128


def _q4_k(blocks: Bytes) -> Affine:
    """Eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum."""
    packed = blocks[:, 4:16]
    low, mins, tail = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    # Sub-blocks 0-3: the low 6 bits of bytes 0-3 and 4-7. Sub-blocks 4-7: a nibble of bytes 8-11, with the two bits
    # left over in bytes 0-3 and 4-7 on top.
    scale = np.concatenate((low & 63, tail & 15 | low >> 6 << 4), axis=-1).astype(np.float32)
    minimum = np.concatenate((mins & 63, tail >> 4 | mins >> 6 << 4), axis=-1).astype(np.float32)
    # Each 32 bytes hold two sub-blocks: low nibbles, then high ones.
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return Affine(q, _half(blocks, 0) * scale, -(_half(blocks, 2) * minimum))


def _q6_k(blocks: Bytes) -> Floats:
    """Two halves of 128, each 64 bytes of low nibbles and 32 bytes of upper bit pairs; a scale per 16 elements."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    q = (low | pairs << 4).reshape(-1, 16, 16).astype(np.float32) - 32.0
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[..., None] * q).reshape(-1, 256)


def _affine_type(name: str, elements: int, num_bytes: int, affine: AffineBlocks) -> BlockType:
    """An encoding whose values follow from its integers; fp32 holds every product and rounds at most the sum."""

    def values(blocks: Bytes) -> Floats:
        q, scale, offset = affine.decode(blocks)
        grouped = q.reshape(*scale.shape, GROUP).astype(np.float32)
        return (scale[..., None] * grouped + offset[..., None]).reshape(q.shape)

    return BlockType(name, elements, num_bytes, values, affine)


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    2: _affine_type("Q4_0", 32, 18, AffineBlocks(4, _q4_0)),
    3: _affine_type("Q4_1", 32, 20, AffineBlocks(4, _q4_1)),
    6: _affine_type("Q5_0", 32, 22, AffineBlocks(8, _q5_0)),
    8: _affine_type("Q8_0", 32, 34, AffineBlocks(8, _q8_0)),
    12: _affine_type("Q4_K", 256, 144, AffineBlocks(4, _q4_k)),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, _bf16),
}
"""By the type number in the file."""

FOUR_BIT_TYPES = frozenset({2, 3, 12})
"""Q4_0, Q4_1 and Q4_K by their numbers."""
