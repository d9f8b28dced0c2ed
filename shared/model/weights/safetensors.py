"""Directories as the Hugging Face hub holds them: `config.json` and one or more safetensors files.

Knows file names, not what any field or tensor means.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.shared.errors import ModelError

_T = TypeVar("_T")


class _Index(msgspec.Struct):
    """`model.safetensors.index.json`."""

    weight_map: dict[str, str]


def read_config(folder: Path) -> dict[str, object]:
    """The parsed `config.json`; raises ModelError."""
    return _read_json(folder / "config.json", dict[str, object])


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the folder's weights as (name, tensor in its stored type); raises ModelError."""
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a mapping
                    yield name, _floating(path, name, file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: {error}") from error


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted({folder / name for name in _read_json(index, _Index).weight_map.values()})
    return [folder / "model.safetensors"]


def _floating(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1:
        raise ModelError(f"{path}: tensor {name} is stored as {tensor.dtype}; only fp32, fp16 and bf16 are supported")
    return tensor


def _read_json(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: {error}") from error
