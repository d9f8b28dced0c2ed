"""The real servers accept their files in deploy/ and take the values that headrace counts on."""

import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent


def test_nats_server_accepts_its_file(root):
    result = _check_nats(root / "deploy" / "nats.conf", {"NATS_PASSWORD": "secret"})

    assert result.returncode == 0, result.stderr


def test_nats_server_does_not_start_without_a_password(root):
    result = _check_nats(root / "deploy" / "nats.conf", {})

    assert "NATS_PASSWORD" in result.stderr + result.stdout
    assert result.returncode != 0


def _check_nats(path, environment) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "nats-server", "-t", "-c", path], env=environment, capture_output=True, text=True, check=False
    )
