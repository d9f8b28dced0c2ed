"""Compiles the kernels into the user's cache, once per source, compiler flags and processor kind.

`python -m headrace.shared.kernels.build` does it ahead of time (`make install`), a worker at its start otherwise.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import structlog

_SOURCES = Path(__file__).parent / "csrc"
_MAIN = "forward.c"
_FLAGS = (
    "-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread",
    "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma",
)  # fmt: skip
_NEEDED = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"})
_LONGEST_S = 180.0

log = structlog.get_logger()


def is_supported() -> bool:
    """Whether this processor has the instructions the kernels are written for."""
    if platform.machine() != "x86_64":
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= _NEEDED


def library_path() -> Path | None:
    """The compiled library, made now if it is not there yet; None where it cannot be had, with the reason logged."""
    if not is_supported():
        return None
    path = _cached()
    if path.exists():
        return path
    compiler = _compiler()
    if compiler is None:
        log.warning("kernels_missing", reason="no C compiler: install one, or the package ziglang")
        return None
    try:
        _compile(compiler, path)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("kernels_missing", reason=_why(error))
        return None
    return path


def _cached() -> Path:
    digest = hashlib.sha256("\0".join(_FLAGS).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "headrace" / "kernels" / f"{digest.hexdigest()[:16]}.so"


def _compiler() -> list[str] | None:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return [name]
    return [sys.executable, "-P", "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def _compile(compiler: list[str], path: Path) -> None:
    """Several workers may start at once: one compiles, the others wait and find the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        unfinished = path.with_suffix(f".{os.getpid()}")
        command = [*compiler, *_FLAGS, "-o", str(unfinished), str(_SOURCES / _MAIN), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S)
        unfinished.rename(path)
        log.info("kernels_compiled", path=str(path), compiler=compiler[0])


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last: str = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"the compiler failed: {last}"
    return str(error)


if __name__ == "__main__":
    found = library_path()
    sys.stdout.write(f"kernels: {found or 'none; models run in torch'}\n")
