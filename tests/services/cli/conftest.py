"""The command line as people run it, and an instance in miniature for it to talk to."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def headrace(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `headrace …` in a fresh process, away from this user's files and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    places = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**kept, **places, "PYTHONSAFEPATH": "1", **environ}
        command = [sys.executable, "-m", "headrace", *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)

    return run


class Miniature:
    """Answers by path: bytes are sent as they are, everything else as JSON; a list gives one answer a call."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.errors: dict[str, tuple[int, object]] = {}
        self.worker_lists: list[list[dict[str, object]]] = []
        self.posted: list[tuple[str, object]] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, bytes]:
        if path in self.errors:
            status, body = self.errors[path]
            return status, json.dumps(body).encode()
        if path == "/headrace/workers" and self.worker_lists:
            listed = self.worker_lists.pop(0) if len(self.worker_lists) > 1 else self.worker_lists[0]
            return 200, json.dumps(listed).encode()
        body = self.answers[path]
        return 200, body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def instance() -> Iterator[Miniature]:
    miniature = Miniature()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = miniature.answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            miniature.posted.append((self.path, json.loads(content)))
            self.do_GET()

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    miniature.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield miniature
    server.shutdown()
    thread.join()
    server.server_close()
