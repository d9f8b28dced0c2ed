"""GGUF files: metadata and tensors by name, decoded to fp32.

Knows the container, not what any key or tensor means. The header is walked here rather than by the `gguf` package,
which makes objects of every vocabulary entry: 10.5 s for a vocabulary of 262,144 on the test machine, 0.2 s here.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headrace.shared.errors import ModelError
from headrace.shared.model.weights.blocks import (
    BLOCK_TYPES,
    FOUR_BIT_TYPES,
    AffineRows,
    BlockType,
    Bytes,
    decode,
    decode_affine,
)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_KEPT_ARRAY = 1024
"""Longer arrays are vocabulary: nothing a model is built from."""

Value = str | int | float | bool | list["Value"]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies."""

    shape: tuple[int, ...]
    """Outermost dimension first, the reverse of the file's order."""
    kind: int
    offset: int
    """Bytes from the start of the file."""


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open GGUF file; tensor bytes are read when asked for."""

    path: Path
    metadata: dict[str, Value]
    """Without arrays of more than 1,024 elements."""
    tensors: dict[str, TensorEntry]
    data: mmap.mmap

    def read(self, name: str) -> Tensor:
        """The tensor `name` in fp32; raises ModelError if its encoding is unknown or the file ends too early."""
        kind, raw = self._raw(name)
        return torch.from_numpy(decode(kind, raw)).view(self.tensors[name].shape)

    def read_affine(self, name: str) -> AffineRows | None:
        """The integers of the matrix `name`, None if its encoding has none; raises ModelError as `read` does."""
        kind, raw = self._raw(name)
        return decode_affine(kind, raw, self.tensors[name].shape)

    def has_4bit(self) -> bool:
        """Whether some tensor is stored as 4-bit integers with a scale per 32."""
        return any(entry.kind in FOUR_BIT_TYPES for entry in self.tensors.values())

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, one in memory at a time."""
        for name in self.tensors:
            yield name, self.read(name)

    def _raw(self, name: str) -> tuple[BlockType, Bytes]:
        entry = self.tensors[name]
        kind = BLOCK_TYPES.get(entry.kind)
        if kind is None:
            known = ", ".join(known.name for known in BLOCK_TYPES.values())
            raise ModelError(f"{self.path}: tensor {name} has type number {entry.kind}; known are {known}")
        num_blocks, rest = divmod(math.prod(entry.shape), kind.elements)
        num_bytes = num_blocks * kind.num_bytes
        if rest or entry.offset + num_bytes > len(self.data):
            raise ModelError(f"{self.path}: tensor {name} does not fit: the file is cut short or corrupt")
        return kind, np.frombuffer(self.data, np.uint8, num_bytes, entry.offset)


def open_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file; raises ModelError if it is none or is cut short."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from error
    try:
        return _parse(path, data)
    except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
        raise ModelError(f"{path}: the header is cut short or corrupt") from error


def _parse(path: Path, data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(data)
    version = cursor.number("<I") if data[:4] == _MAGIC else 0
    if version not in _VERSIONS:
        raise ModelError(f"{path}: not a little-endian GGUF file of version 2 or 3")
    num_tensors, num_fields = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Value] = {}
    for _ in range(num_fields):
        key = cursor.string()
        value = cursor.value(cursor.number("<I"))
        if value is not None:
            metadata[key] = value
    entries = dict(cursor.tensor() for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path}: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: TensorEntry(e.shape, e.kind, start + e.offset) for name, e in entries.items()}
    return GGUFFile(path, metadata, tensors, data)


class _Cursor:
    """Reads the header's fields one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = len(_MAGIC)

    def number(self, form: str) -> int:
        """One scalar; floats and booleans come through `value`."""
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value  # type: ignore[no-any-return]  # struct's result depends on the format

    def string(self) -> str:
        length = self.number("<Q")
        raw = self.data[self.at : self.at + length]
        if len(raw) != length:
            raise IndexError(length)
        self.at += length
        return raw.decode()

    def value(self, kind: int) -> Value | None:
        """One metadata value; None for an array not worth keeping."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        item, count = self.number("<I"), self.number("<Q")
        if count > _KEPT_ARRAY:
            self._skip(item, count)
            return None
        values = (self.value(item) for _ in range(count))
        return [value for value in values if value is not None]

    def tensor(self) -> tuple[str, TensorEntry]:
        """One tensor's name and entry, its offset still relative to the data section."""
        name = self.string()
        dims = [self.number("<Q") for _ in range(self.number("<I"))]
        return name, TensorEntry(tuple(reversed(dims)), self.number("<I"), self.number("<Q"))

    def _skip(self, item: int, count: int) -> None:
        if item != _STRING:
            self.at += count * struct.calcsize(_SCALARS[item])
            return
        unpack, at = struct.Struct("<Q").unpack_from, self.at
        for _ in range(count):
            at += 8 + unpack(self.data, at)[0]
        self.at = at
