"""A Valkey server of one test's own, to be frozen, killed, filled and restarted."""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace.shared.cache.keys import Scope, block_keys
from headrace.shared.cache.redis import RedisStore, open_store
from headrace.shared.config import Cache
from headrace.shared.embedded.valkey_server import binary

BUDGET_S = 0.25
PAUSE_S = 0.4


class Server:
    """One valkey-server process behind a unix socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: str) -> None:
        lines = {
            "port": "0", "unixsocket": self.socket, "dir": self._folder, "save": '""', "appendonly": "no", **settings
        }  # fmt: skip
        options = "".join(f"{key} {value}\n" for key, value in lines.items())
        command = [str(binary()), "-"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert self._process.stdin is not None
        self._process.stdin.write(options.encode())
        self._process.stdin.close()
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return
            time.sleep(0.01)  # nothing announces that a server is up
        raise AssertionError("valkey-server did not start")

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket))

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    own = Server(tmp_path)
    own.start()
    yield own
    own.kill()


@pytest.fixture
def make_keys() -> Callable[[int], list[str]]:
    """Keys of the first n blocks of a prompt nobody else has, by the real key function."""
    scope = Scope(fingerprint=secrets.token_hex(8), form="bf16")
    return lambda n: block_keys(scope, range(n * 16), 16)


class Meter:
    """Remembers what the store tells."""

    def __init__(self) -> None:
        self.cuts: list[str | None] = []
        self.changes: list[bool] = []

    def looked_up(self, seconds: float, cut: str | None) -> None:
        assert seconds >= 0
        self.cuts.append(cut)

    def breaker_changed(self, is_open: bool) -> None:
        self.changes.append(is_open)


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def open_at(meter):
    """Open a store with a budget of 0.25 s and a pause of 0.4 s on a URL; closed at the end."""
    opened = []

    def make(url: str, **settings) -> RedisStore:
        store = open_store(Cache(url=url, **{"budget_s": BUDGET_S, "breaker_s": PAUSE_S, **settings}), meter)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def timed() -> Callable[[Callable[[], object]], tuple[object, float]]:
    """Call something; returns its result and the seconds it took."""

    def run(call: Callable[[], object]) -> tuple[object, float]:
        began = time.monotonic()
        result = call()
        return result, time.monotonic() - began

    return run
