"""The container's health check tells a process that answers from one that does not."""

import os
import subprocess
import sys

import pytest

from headrace.shared.telemetry import metrics


@pytest.fixture
def check(root):
    def run(pid: int) -> subprocess.CompletedProcess[str]:
        """The script as the container runs it, but looking at `pid` instead of the container's first process."""
        probe = f"import runpy, sys; sys.exit(runpy.run_path({str(root / 'deploy/healthcheck.py')!r})['main']({pid}))"
        return subprocess.run([sys.executable, "-P", "-c", probe], capture_output=True, text=True, check=False)

    return run


def test_a_process_that_serves_its_metrics_is_healthy(check):
    metrics.serve()

    result = check(os.getpid())

    assert (result.returncode, result.stderr) == (0, "")


def test_a_process_that_listens_nowhere_is_not(check):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as silent:
        result = check(silent.pid)

        silent.communicate(b"\n")

    assert result.returncode == 1
    assert "listens on no port" in result.stderr


def test_a_process_that_no_longer_answers_is_not(check):
    """Its socket is open, nobody accepts: the check gives up by itself."""
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as wedged:
        wedged.stdout.readline()

        result = check(wedged.pid)

        wedged.communicate(b"\n")

    assert result.returncode == 1
    assert "timed out" in result.stderr
