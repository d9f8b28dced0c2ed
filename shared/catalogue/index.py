"""What has been pulled into a models directory, and the locks that let several processes share it.

`index.json` maps a pulled name to its path, checksum, size and source. It is replaced whole, so readers need no lock.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.shared.errors import ModelError

_FILE = "index.json"


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """One pulled model."""

    path: str
    """Absolute, or relative to the models directory."""
    sha256: str
    size_bytes: int
    source: str


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The index file."""

    models: dict[str, Pulled] = {}
    v: int = 1


def read(models_dir: Path) -> Index:
    """The index; empty when there is none. Raises ModelError when it cannot be understood."""
    file = models_dir / _FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Index)
    except FileNotFoundError:
        return Index()
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"models directory {models_dir}: {_FILE}: {error}") from error


def record(models_dir: Path, name: str, pulled: Pulled) -> None:
    """Add or replace one entry."""
    with locked(models_dir, "index"):
        models = {**read(models_dir).models, name: pulled}
        draft = models_dir / f".{_FILE}.new"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(Index(models=models))))
        draft.replace(models_dir / _FILE)


@contextmanager
def locked(models_dir: Path, what: str) -> Iterator[None]:
    """Hold the lock `what` of this directory against all other processes; freed by the kernel if we die."""
    models_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(models_dir / f".{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
