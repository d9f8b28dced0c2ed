"""Which models there are and where their files lie, verified by checksum. Knows neither tensors nor tokenizers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model on disk, verified."""

    name: str
    """The name clients use."""
    kind: Literal["gguf", "hf", "scripted"]
    path: Path
    """The GGUF file or the HF directory (meaningless for `scripted`)."""
    fingerprint: str
    """sha256 hex over the weights (HF: over all safetensors in name order, then config.json)."""
    created: int = 0
    """Unix seconds."""

    @property
    def revision(self) -> str:
        """Short name of this set of weights."""
        return self.fingerprint[:12]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `headrace models list`."""

    name: str
    present: bool
    size_bytes: int
    """Bytes on disk, or to be downloaded."""
    sha256: str
    source: str
    """Where it comes from, in words."""


from headrace.shared.catalogue.lookup import listing, pull, resolve, verify  # noqa: E402  # they need the types above

__all__ = ["Entry", "ModelFiles", "listing", "pull", "resolve", "verify"]
