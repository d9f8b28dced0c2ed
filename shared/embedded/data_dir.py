"""The data directory of one instance: its folders, and a lock the kernel frees when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.shared.errors import ConfigError

FOLDERS = ("run", "logs", "nats")
_LOCK = "lock"


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold `data_dir` (created if missing, with its folders); raises ConfigError naming the process that holds it."""
    try:
        for name in FOLDERS:
            (data_dir / name).mkdir(parents=True, exist_ok=True)
        handle = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"data directory {data_dir} cannot be written: {error.strerror}") from error
    try:
        if not _try_lock(handle):
            raise ConfigError(f"data directory {data_dir} is in use by pid {_pid_in(handle) or 'unknown'}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(handle)


def is_locked(data_dir: Path) -> bool:
    """Whether an instance runs on `data_dir`."""
    try:
        handle = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)


def config_file(data_dir: Path) -> Path:
    """Where the supervisor leaves the effective configuration for the stages."""
    return data_dir / "run" / "config.yaml"


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(handle: int) -> str:
    return os.pread(handle, 32, 0).decode("ascii", "replace").strip()
