"""Models that lie on this machine already: a GGUF file, a folder with one, or a Hugging Face folder.

There is no list of checksums for these; what can be known to be wrong (missing shards, a cut file) is refused.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ModelError

_GGUF = ".gguf"
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_SHARD_INDEX = "model.safetensors.index.json"
_HASH_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100 << 20


def inspect(name: str, path: Path) -> ModelFiles:
    """The model at `path` under the client name `name`; raises ModelError saying what is missing or broken."""
    try:
        if not path.is_dir():
            return _inspect_gguf(name, path)
        if not any(path.glob("*.safetensors")) and (found := sorted(path.glob(f"*{_GGUF}"))):
            return _inspect_gguf(name, _only(name, path, found))
        return _inspect_hf(name, path)
    except OSError as error:
        raise ModelError(f"model {name}: cannot read {error.filename or path}: {error.strerror}") from error


def client_name(path: Path) -> str:
    """The name clients use for a local path: its last component, without `.gguf`."""
    last = path.absolute().name
    if last == "..":
        last = path.resolve().name
    return last[: -len(_GGUF)] if last.lower().endswith(_GGUF) else last


def size_bytes(path: Path) -> int:
    """Bytes of the weights at `path`; 0 when there are none."""
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob(f"*{_GGUF}")]
    return sum(file.stat().st_size for file in files)


def digest_of(*files: Path) -> str:
    """sha256 hex over the contents of the files, one after another."""
    if len(files) == 1:
        with files[0].open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as source:
            while data := source.read(_HASH_BYTES):
                digest.update(data)
    return digest.hexdigest()


def _only(name: str, folder: Path, found: Sequence[Path]) -> Path:
    if len(found) > 1:
        listed = ", ".join(file.name for file in found)
        raise ModelError(f"model {name}: {folder} holds {len(found)} GGUF files ({listed}); name one of them")
    return found[0]


def _inspect_gguf(name: str, file: Path) -> ModelFiles:
    if _SPLIT.search(file.stem):
        raise ModelError(f"model {name}: {file.name} is one piece of a split GGUF file; merge the pieces into one file")
    with file.open("rb") as source:
        if source.read(4) != b"GGUF":
            raise ModelError(f"model {name}: {file} is not a GGUF file")
    created = int(file.stat().st_mtime)
    return ModelFiles(name=name, kind="gguf", path=file.absolute(), fingerprint=digest_of(file), created=created)


def _inspect_hf(name: str, folder: Path) -> ModelFiles:
    weights = sorted(folder.glob("*.safetensors"))
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not (folder / "tokenizer.json").is_file() and len([*folder.glob(f"*{_GGUF}")]) != 1:
        # A vocabulary may also lie in the metadata of one GGUF file beside the weights.
        missing.append("tokenizer.json")
    missing += sorted(_listed_shards(name, folder) - {file.name for file in weights})
    if missing or not weights:
        listed = ", ".join(missing or ["*.safetensors"])
        raise ModelError(f"model {name}: {folder} lacks {listed}")
    for file in weights:
        _check_safetensors(name, file)
    return ModelFiles(
        name=name,
        kind="hf",
        path=folder.absolute(),
        fingerprint=digest_of(*weights, folder / "config.json"),
        created=int(max(file.stat().st_mtime for file in weights)),
    )


def _listed_shards(name: str, folder: Path) -> set[str]:
    """File names the shard index asks for; empty without an index."""
    index = folder / _SHARD_INDEX
    if not index.exists():
        return set()
    try:
        listed = json.loads(index.read_bytes())["weight_map"].values()
        return {str(shard) for shard in listed}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"model {name}: {_SHARD_INDEX} holds no weight_map") from error


def _check_safetensors(name: str, file: Path) -> None:
    """Compare the file's length with what its own header promises: a cut download shows here."""
    size = file.stat().st_size
    with file.open("rb") as source:
        num_header = int.from_bytes(source.read(8), "little")
        if not 2 <= num_header <= min(size - 8, _MAX_HEADER_BYTES):
            raise ModelError(f"model {name}: {file.name} is corrupt: no safetensors header")
        try:
            tensors = json.loads(source.read(num_header))
            ends = [entry["data_offsets"][1] for key, entry in tensors.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"model {name}: {file.name} is corrupt: unreadable safetensors header") from error
    expected = 8 + num_header + max(ends, default=0)
    if size != expected:
        raise ModelError(f"model {name}: {file.name} is corrupt: {size} bytes, expected {expected}")
