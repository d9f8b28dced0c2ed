"""Servers as child processes: start, wait until they answer, weigh, stop. Knows no server in particular."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 0.2
_LOG_TAIL_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    url: str
    model: str
    rss_bytes: Callable[[], dict[str, int]]
    """Resident memory by process; pages that processes share count in each."""


class ServerError(Exception):
    """A server did not start."""


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    is_ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    limit_s: float = 600.0,
    drain_s: float = 40.0,
) -> Iterator[int]:
    """Run `command` in a session of its own, its output in `log`, and give its pid once `is_ready`.

    Ended by SIGTERM to the command alone, and after `drain_s` by SIGKILL to all that is left of its session. Raises
    ServerError if it ends or is not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
    try:
        _await(process, log, is_ready, time.monotonic() + limit_s)
        yield process.pid
    finally:
        _stop(process, drain_s)


def answers(url: str) -> bool:
    """Whether a GET gets a 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; zero when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text("utf-8").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def session(leader: int) -> list[int]:
    """All processes of the session that `leader` began."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _session_of(pid) == leader]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _await(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool], give_up_at: float) -> None:
    while not is_ready():
        if process.poll() is not None or time.monotonic() > give_up_at:
            state = "not ready in time" if process.returncode is None else f"ended with {process.returncode}"
            raise ServerError(f"{process.args!r} {state}: {log.read_text('utf-8', 'replace')[-_LOG_TAIL_CHARS:]}")
        time.sleep(_LOOK_S)


def _stop(process: subprocess.Popen[bytes], drain_s: float) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(drain_s)
    for pid in session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
