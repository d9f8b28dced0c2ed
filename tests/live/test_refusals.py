"""What cannot work is refused at the start: one line that says what to change, exit code 78, within seconds."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LIMIT_S = 12.0
"""Ten of them are the wait for a queue server that may still be starting."""
NOBODY = "nats://127.0.0.1:1"
SMOLLM2 = "smollm2-135m-instruct"

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(cli: Cli, *args: str, env: dict[str, str] | None = None) -> str:
    """Run a command that must be refused; returns what it says."""
    began = time.monotonic()
    done = cli(*args, env=env, timeout=LIMIT_S + 20)
    took_s = time.monotonic() - began

    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("headrace: ")
    assert took_s < LIMIT_S
    return line.removeprefix("headrace: ")


@pytest.fixture
def up_refused(cli: Cli, tmp_path: Path) -> Callable[..., str]:
    """`headrace up` on a data directory of its own, refused; later flags win."""

    def run(*args: str, env: dict[str, str] | None = None) -> str:
        base = ("up", "--port", "0", "--data-dir", str(tmp_path / "data"))
        return refused(cli, *base, *(() if "--model" in args else ("--model", "scripted")), *args, env=env)

    return run


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_an_unknown_key_is_named_with_where_it_stands(up_refused: Any, tmp_path: Path, source: str) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("decode: {slotz: 3}\n", "utf-8")
    args, env, place = {
        "flag": (("--set", "decode.slotz=3"), None, "--set decode.slotz=3"),
        "environment": ((), {"HEADRACE_DECODE__SLOTZ": "3"}, "HEADRACE_DECODE__SLOTZ"),
        "file": (("--config", str(file)), None, str(file)),
    }[source]

    line = up_refused(*args, env=env)

    assert "unknown key 'decode.slotz'" in line
    assert place in line
    assert "slots" in line  # the keys there are


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("decode.slots=many", "decode.slots"),
        ("decode.slots=0", "decode.slots"),
        ("engine.profile=int3", "engine.profile"),
        ("up.workers={decode: 1, decoder: 1}", "decoder"),
        ("cache.url=http://127.0.0.1", "cache.url"),
        ("decode.slots", "key=value"),
    ],
)
def test_a_malformed_value_is_named(up_refused: Any, setting: str, words: str) -> None:
    assert words in up_refused("--set", setting)


def test_an_unreadable_configuration_file_is_named(up_refused: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("up: {port: [", "utf-8")

    assert str(broken) in up_refused("--config", str(broken))
    assert str(tmp_path / "absent.yaml") in up_refused("--config", str(tmp_path / "absent.yaml"))


def test_an_unknown_model_is_answered_with_the_known_ones(up_refused: Any) -> None:
    line = up_refused("--model", "gpt-17")

    assert "gpt-17" in line
    assert SMOLLM2 in line


def test_a_model_that_was_not_pulled_is_answered_with_the_command_that_pulls_it(
    up_refused: Any, tmp_path: Path
) -> None:
    line = up_refused("--model", SMOLLM2, env={"HEADRACE_MODELS_DIR": str(tmp_path / "models")})

    assert f"headrace models pull {SMOLLM2}" in line


@pytest.fixture
def corrupt_models(cli: Cli, tmp_path: Path) -> Path:
    """A models directory in which one bit of the file is wrong, deep inside a tensor."""
    folder = tmp_path / "models"
    shutil.copytree(_models_dir(cli), folder, ignore=shutil.ignore_patterns("a5fd*"))
    (file,) = folder.glob("b179*.gguf")
    with file.open("r+b") as weights:
        weights.seek(file.stat().st_size // 2)
        (byte,) = weights.read(1)
        weights.seek(-1, os.SEEK_CUR)
        weights.write(bytes([byte ^ 1]))
    return folder


def _models_dir(cli: Cli) -> str:
    (line,) = [line for line in cli("config", "model").stdout.splitlines() if line.startswith("  dir: ")]
    return line.removeprefix("  dir: ").partition("  #")[0].strip('"')


@pytest.mark.model
def test_a_corrupt_model_file_is_named(up_refused: Any, corrupt_models: Path) -> None:
    line = up_refused("--model", SMOLLM2, env={"HEADRACE_MODELS_DIR": str(corrupt_models)})

    assert "corrupt" in line
    assert f"headrace models pull {SMOLLM2}" in line


@pytest.mark.model
@pytest.mark.parametrize("setting", ["engine.profile=bf16", "prefill.profile=fp32", "decode.profile=int4"])
def test_what_no_engine_offers_is_refused_before_anything_starts(up_refused: Any, tmp_path: Path, setting: str) -> None:
    line = up_refused("--model", SMOLLM2, "--set", "engine.deterministic=true", "--set", setting)

    assert f"{setting} is not row-invariant" in line
    assert list((tmp_path / "data" / "logs").iterdir()) == []


@pytest.mark.model
def test_what_only_a_worker_can_find_out_ends_the_start_instead_of_a_crash_loop(cli: Cli, tmp_path: Path) -> None:
    began = time.monotonic()
    base = ("up", "--port", "0", "--data-dir", str(tmp_path), "--model", SMOLLM2)
    done = cli(*base, "--set", "engine.kv_bytes=1000", timeout=60)
    words = [line for line in done.stderr.splitlines() if not line.startswith("{")]  # the others are log events

    assert done.returncode == 78
    assert time.monotonic() - began < LIMIT_S + 10  # two workers import torch first
    assert "did not start: engine.kv_bytes=1000 does not hold one block" in words[-1]
    assert done.stderr.count('"stage_starting"') <= 5


def test_a_stage_that_cannot_load_its_model_ends_with_78(cli: Cli, scripted: Any) -> None:
    nats = _running_nats(scripted)
    done = cli("decode", "--set", f"nats.url={nats}", "--set", "model.names=gpt-17", "--set", "cache.url=off")

    assert done.returncode == 78
    assert "gpt-17" in done.stderr.splitlines()[-1]


def _running_nats(instance: Any) -> str:
    text = (instance.data_dir / "run" / "config.yaml").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("  url: nats://")]
    return line.removeprefix("  url: ")


def test_a_port_somebody_listens_on_is_named(up_refused: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = up_refused("--port", str(port))

    assert f"port {port} on 127.0.0.1 is in use" in line


def test_a_dead_queue_server_is_named(up_refused: Any) -> None:
    assert NOBODY in up_refused("--set", f"nats.url={NOBODY}")


@pytest.mark.parametrize("stage", ["ingress", "tokenize", "router", "prefill", "decode"])
def test_no_stage_waits_for_a_dead_queue_server_longer_than_it_was_told(cli: Cli, stage: str) -> None:
    settings = ("--set", f"nats.url={NOBODY}", "--set", "nats.connect_s=1", "--set", "model.names=scripted")

    assert f"{NOBODY}: no NATS server answered within 1 s" in refused(cli, stage, *settings)


@pytest.mark.parametrize("place", ["beneath a file", "in /proc"])
def test_a_data_directory_that_cannot_be_written_is_named(cli: Cli, tmp_path: Path, place: str) -> None:
    """Not by permissions: the superuser, who runs tests in containers, may write anywhere."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data" if place == "beneath a file" else Path("/proc/headrace")

    line = refused(cli, "up", "--port", "0", "--data-dir", str(folder), "--model", "scripted")

    assert f"data directory {folder} cannot be written" in line


def test_a_second_instance_on_one_data_directory_is_told_who_has_it(cli: Cli, scripted: Any) -> None:
    line = refused(cli, "up", "--port", "0", "--data-dir", str(scripted.data_dir), "--model", "scripted")

    assert f"{scripted.data_dir} is in use by pid {scripted.process.pid}" in line


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_address_that_strangers_reach_needs_consent(up_refused: Any, host: str) -> None:
    line = up_refused("--host", host)

    assert host in line
    assert "--insecure-dev" in line


def own_addresses() -> Iterator[str]:
    """The address by which other machines reach this one: none on a machine without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documentation; nothing is sent
        except OSError:
            return
        yield probe.getsockname()[0]


def test_a_queue_server_open_to_strangers_needs_consent(
    up_refused: Any, start_nats: Callable[..., Any], tmp_path: Path
) -> None:
    """Told by the connection's own address, so a machine without a network has no such server."""
    for address in own_addresses():
        server = start_nats(options=f'listen: "{address}:-1"')

        assert "open to anybody" in up_refused("--set", f"nats.url={server.url}")
