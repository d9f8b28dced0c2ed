"""What a family of models brings: how its metadata becomes a configuration and its tensor names ours.

No family has forward code; what one does differently is a switch in `ModelConfig`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from torch import Tensor

from headrace.shared.errors import ModelError
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Names:
    """One way of naming tensors on disk. Paths stand without their last word (`weight`, `bias`)."""

    top: Mapping[str, str]
    """Path on disk → our path."""
    layer_prefix: str
    """What stands before a layer's number."""
    layer: Mapping[str, str]
    """Path within a layer on disk → our path within a layer."""
    ignored: frozenset[str] = frozenset()
    """Whole names, or names within a layer, that carry nothing of their own."""

    def ours(self, name: str) -> str | None:
        """Our name of a tensor; the name unchanged if it is unknown, None if it is to be ignored."""
        path, _, kind = name.rpartition(".")
        match = re.fullmatch(rf"{re.escape(self.layer_prefix)}(\d+)\.(.+)", path)
        if name in self.ignored or (match and f"{match[2]}.{kind}" in self.ignored):
            return None
        if match and match[2] in self.layer:
            return f"layers.{match[1]}.{self.layer[match[2]]}.{kind}"
        return f"{self.top[path]}.{kind}" if path in self.top else name


@dataclass(frozen=True, slots=True)
class Family:
    """One model family, as `registry` finds it."""

    hf: Names
    gguf: Names
    config_from_hf: Callable[[Mapping[str, object]], ModelConfig]
    config_from_gguf: Callable[[GGUFFile], ModelConfig]
    adapt_gguf: Callable[[str, Tensor, ModelConfig], Tensor] = lambda _name, tensor, _config: tensor
    """Turn a GGUF tensor, given under our name, into our layout and precision."""
    order_gguf: Callable[[str, Tensor, ModelConfig], Tensor] = lambda _name, tensor, _config: tensor
    """The layout alone: bring the rows of anything that belongs to a GGUF tensor into our order."""


def parse(raw: Mapping[str, object], kind: type[S], source: str) -> S:
    """Read a family's metadata into its Struct; raises ModelError naming the field at fault."""
    try:
        return msgspec.convert(dict(raw), kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{source}: {error}") from error


def gguf_fields(file: GGUFFile) -> dict[str, object]:
    """The metadata of the file's own architecture, without the architecture's name before each key."""
    prefix = f"{file.metadata['general.architecture']}."
    return {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}


def refuse(what: str, *, unless: bool) -> None:
    """Raise ModelError for metadata that asks for something this decoder does not compute."""
    if not unless:
        raise ModelError(f"{what} is not supported")
