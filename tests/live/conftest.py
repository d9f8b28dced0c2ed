"""Whole instances of headrace, started as a user starts them: `headrace up` in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

START_S = 120.0
STOP_S = 60.0


class Instance:
    """One `headrace up` with its URL."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, data_dir: Path) -> None:
        self.process = process
        self.url = url
        self.data_dir = data_dir

    def get(self, path: str) -> Any:
        """GET a JSON document."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any], timeout: float = 60) -> Any:
        """POST a JSON document."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def workers(self, stage: str | None = None, state: str | None = "ready") -> list[dict[str, Any]]:
        """Rows of `headrace ps`."""
        rows = self.get("/headrace/workers")
        return [row for row in rows if stage in (None, row["stage"]) and state in (None, row["state"])]

    def metrics(self, stage: str) -> list[str]:
        """Lines of the exporters of a stage's ready workers."""
        lines: list[str] = []
        for row in self.workers(stage):
            with urllib.request.urlopen(row["metrics"], timeout=5) as answer:
                lines += answer.read().decode().splitlines()
        return lines

    def wait(self, what: str, check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Poll a fact of another process until it holds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = check()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{what} did not happen within {timeout_s} s")

    def headrace(self, *args: str, timeout: float = 130) -> "subprocess.CompletedProcess[str]":
        """Run a client verb against this instance."""
        return headrace(*args, timeout=timeout, env={"HEADRACE_URL": self.url})

    def stop(self) -> int:
        """SIGTERM, as an operator stops it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


def headrace(*args: str, timeout: float = 60, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one `headrace` command to its end."""
    command = [sys.executable, "-m", "headrace", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **(env or {})}
    )


@contextlib.contextmanager
def running(data_dir: Path, *args: str) -> Iterator[Instance]:
    """`headrace up` with a free port until the block ends; its log is kept in the data dir."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace", "up", "--port", "0", "--data-dir", str(data_dir), *args]
    with (data_dir / "stderr.log").open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield Instance(process, _ready_url(process, data_dir), data_dir)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.stdout is not None:
            process.stdout.close()


def _ready_url(process: "subprocess.Popen[str]", data_dir: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready "):
        log = (data_dir / "stderr.log").read_text()[-3000:]
        raise AssertionError(f"up did not get ready: {line!r}\n{log}")
    return line.split()[1]


@pytest.fixture(scope="session")
def up() -> Callable[..., contextlib.AbstractContextManager[Instance]]:
    """Start instances of the test's own."""
    return running


@pytest.fixture(scope="session")
def cli() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run `headrace` commands."""
    return headrace


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance that serves the scripted model, shared by tests that leave it as they found it."""
    with running(tmp_path_factory.mktemp("scripted"), "--model", "scripted") as instance:
        yield instance
