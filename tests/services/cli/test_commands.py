"""Verbs, flags and exit codes as scripts see them."""

import json
import socket
import subprocess
import sys
import time

import pytest

from headrace import __version__


def test_the_version_is_printed(headrace):
    result = headrace("--version")

    assert (result.returncode, result.stdout) == (0, f"headrace {__version__}\n")


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("serve",),
        ("up", "--prot", "1"),
        ("up", "--port", "x"),
        ("up", "--workers", "decoder=1"),
        ("up", "--workers", "decode"),
        ("up", "--workers", "decode=-1"),
        ("scale",),
        ("scale", "nats=1"),
        ("scale", "decode=many"),
        ("drain",),
        ("decode", "--workers", "2"),
        ("models",),
        ("models", "pull"),
        ("config", "kitchen"),
        ("check", "kitchen"),
    ],
)
def test_a_bad_flag_exits_2_with_words(headrace, args):
    result = headrace(*args)

    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "environ", "line"),
    [
        (("decode", "--set", "decode.slot=1"), {}, "headrace: --set decode.slot=1: unknown key 'decode.slot'"),
        (("decode", "--set", "decode.slots"), {}, "headrace: --set decode.slots: expected key=value"),
        (("router", "--config", "/none.yaml"), {}, "headrace: configuration file /none.yaml:"),
        (("up",), {"HEADRACE_UPP__PORT": "1"}, "headrace: environment HEADRACE_UPP__PORT: unknown key"),
        (("up", "--host", "0.0.0.0"), {}, "headrace: up.host 0.0.0.0 is not a loopback address"),
        (("up", "--port", "70000"), {}, "headrace: up.port: "),
        (("up", "--port", "0", "--model", "llama"), {}, "headrace: model llama: "),
        (("up", "--port", "0", "--model", "scripted", "scripted"), {}, "headrace: two models would be served as"),
        (("up", "--port", "0"), {}, "headrace: model smollm2-135m-instruct: "),
        (("models", "list"), {"HEADRACE_MODEL__DRI": "/m"}, "headrace: environment HEADRACE_MODEL__DRI: unknown key"),
    ],
)
def test_a_wrong_configuration_exits_78_with_one_line(headrace, args, environ, line):
    result = headrace(*args, **environ)

    assert result.returncode == 78
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_taken_port_exits_78(headrace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = headrace("up", "--port", str(port), "--model", "scripted")

    assert (result.returncode, result.stderr) == (78, f"headrace: port {port} on 127.0.0.1 is in use\n")


def test_an_unreachable_server_exits_78_with_one_line(headrace):
    started = time.monotonic()
    result = headrace(
        *("up", "--port", "0", "--model", "scripted", "--set", "nats.url=nats://127.0.0.1:1"),
        *("--set", "nats.connect_s=0.5", "--set", "cache.url=off"),
    )

    assert result.returncode == 78
    assert [line[:9] for line in result.stderr.splitlines()] == ["headrace:"]
    assert time.monotonic() - started < 12


def test_a_failed_verb_exits_1_with_one_line(headrace, tmp_path):
    result = headrace("models", "verify", "gemma3-270m", HEADRACE_MODELS_DIR=str(tmp_path))

    assert result.returncode == 1
    assert result.stderr.startswith("headrace: model gemma3-270m: ")


def test_check_says_what_is_wrong_line_by_line(headrace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = headrace("check", "--set", f"up.port={port}", "--set", "model.names=scripted")

    assert result.returncode == 78
    assert result.stdout.splitlines() == [
        "ok config",
        "ok data-dir",
        f"FAIL port: 127.0.0.1 port {port}: Address already in use",
        "FAIL nats: nats.url is not set (headrace up starts its own)",
        "ok model scripted",
    ]


def test_check_of_one_stage_asks_what_that_stage_needs(headrace):
    result = headrace("check", "router", "--set", "cache.url=off")

    assert result.stdout.splitlines() == ["ok config", "FAIL nats: nats.url is not set (headrace up starts its own)"]


def test_check_prints_a_wrong_configuration(headrace):
    result = headrace("check", "--set", "up.prot=1")

    assert (result.returncode, result.stdout[:40]) == (78, "FAIL config: --set up.prot=1: unknown ke")


def test_config_prints_values_in_force_with_their_meaning(headrace):
    result = headrace("config", "nats", "--set", "nats.connect_s=3", HEADRACE_NATS__URL="nats://me:secret@host:4222")

    assert result.returncode == 0
    assert result.stdout.splitlines()[:3] == [
        "nats:",
        '  url: "nats://***@host:4222"  # Server URL; empty lets `up` start an embedded server.',
        "  connect_s: 3.0  # How long a stage tries to reach the server at start before it exits 78.",
    ]


def test_config_output_is_a_configuration_file(headrace, tmp_path):
    first = headrace("config", "--set", "decode.slots=7")
    file = tmp_path / "all.yaml"
    file.write_text(first.stdout)

    assert headrace("config", "--config", str(file)).stdout == first.stdout
    assert "slots: 7" in first.stdout


def test_models_are_listed(headrace):
    listed = json.loads(headrace("models", "list", "--json").stdout)

    assert {"name", "present", "sha256"} <= set(listed[0])
    assert "scripted" in [model["name"] for model in listed]
    assert "scripted" in headrace("models", "list").stdout


def test_a_client_verb_loads_nothing_heavy():
    code = (
        "import sys; from headrace.__main__ import main; main(['ps', '--url', 'http://127.0.0.1:1']); "
        "print(sorted({'torch', 'aiohttp', 'nats', 'redis', 'yaml', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=30, check=False)

    assert result.stdout == "[]\n"
