"""Pre-start checks: each fault in one readable line, and nothing wrong where nothing is."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.shared import checks, settings
from headrace.shared.checks import Check
from headrace.shared.config import Cache, Nats
from headrace.shared.embedded import data_dir as data_dirs
from headrace.shared.embedded.nats_server import start_nats
from headrace.shared.embedded.valkey_server import start_valkey
from headrace.shared.errors import ConfigError

GOOD = {"version": "2.15.1", "jetstream": True, "max_payload": 8 << 20}


@pytest.fixture
def instance_dir(tmp_path: Path) -> Path:
    for name in data_dirs.FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


@asynccontextmanager
async def _greeter(greeting: bytes) -> AsyncIterator[str]:
    """A server that says one thing to whoever comes; yields its URL."""

    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"nats://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_check_prints_as_one_line():
    assert str(Check("nats")) == "ok nats"
    assert str(Check("nats", "away")) == "FAIL nats: away"


def test_the_first_failed_check_is_raised():
    with pytest.raises(ConfigError, match=r"^b: wrong$"):
        checks.require(Check("a"), Check("b", "wrong"), Check("c", "too"))

    checks.require(Check("a"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"version": "2.14.0-preview.1"}, None),
        ({"version": "3.0.0"}, None),
        ({"version": "2.13.9"}, "2.13.9 is too old, 2.14 is needed"),
        ({"version": ""}, "unknown is too old"),
        ({"jetstream": False}, "JetStream is off"),
        ({"max_payload": 1 << 20}, "max_payload is 1048576 bytes, 8388608 are needed"),
    ],
)
def test_a_server_is_judged_by_its_greeting(changes, words):
    error = checks.judge_nats({**GOOD, **changes}, is_local=True, insecure_dev=False)

    assert (error is None) if words is None else (words in error)


@pytest.mark.parametrize(
    ("auth", "is_local", "insecure_dev", "is_fine"),
    [
        (False, False, False, False),
        (True, False, False, True),
        (False, True, False, True),
        (False, False, True, True),
    ],
)
def test_a_server_open_to_strangers_is_refused(auth, is_local, insecure_dev, is_fine):
    error = checks.judge_nats({**GOOD, "auth_required": auth}, is_local=is_local, insecure_dev=insecure_dev)

    assert (error is None) is is_fine


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"INFO " + json.dumps(GOOD).encode() + b"\r\n", None),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak NATS"),
        (b"INFO {broken\r\n", "cannot reach nats://127.0.0.1"),
        (b"", "does not speak NATS"),
    ],
)
async def test_the_greeting_is_read(greeting, words):
    async with _greeter(greeting) as url:
        check = await checks.check_nats(url, insecure_dev=False)

    assert (check.error is None) if words is None else (words in check.error)
    assert "secret" not in str(check)


async def test_a_silent_server_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        check = await checks.check_nats(url, insecure_dev=False, timeout_s=0.1)

    assert check.error == f"no answer from {url} within 0.1 s"


async def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    check = await checks.check_nats(f"nats://127.0.0.1:{port}", insecure_dev=False)

    assert check.error == f"cannot reach nats://127.0.0.1:{port}: Connection refused"


async def test_no_server_configured_is_said_with_the_way_out():
    check = await checks.check_nats("", insecure_dev=False)

    assert str(check) == "FAIL nats: nats.url is not set (headrace up starts its own)"


@pytest.mark.live
async def test_streams_are_missing_until_provisioned(instance_dir):
    server, _ = await start_nats(Nats(), instance_dir)
    try:
        reachable = await checks.check_nats(server.url, insecure_dev=False)
        before = await checks.check_streams(server.url)
        made = await checks.check_streams(server.url, provision=True)
        after = await checks.check_streams(server.url)
    finally:
        await server.stop()

    assert reachable.error is None
    assert "missing" in (before.error or "")
    assert made.error is None
    assert after.error is None


@pytest.mark.live
async def test_a_cache_is_fine_when_it_makes_room_by_itself(instance_dir):
    server = await start_valkey(Cache(max_bytes=64 << 20), instance_dir)
    try:
        fine = await asyncio.to_thread(checks.check_cache, server.url)
        await asyncio.to_thread(_set_policy, server.url, "noeviction")
        full = await asyncio.to_thread(checks.check_cache, server.url)
    finally:
        await server.stop()
    gone = await asyncio.to_thread(checks.check_cache, server.url)

    assert fine.error is None
    assert "noeviction" in (full.error or "")
    assert "cannot reach" in (gone.error or "")


@pytest.mark.parametrize("url", ["", "ftp://x", "nonsense"])
def test_a_cache_address_of_no_kind_is_refused(url):
    assert "cache.url" in (checks.check_cache(url).error or "")


def test_models_are_proven(tmp_path):
    assert checks.check_model("scripted", str(tmp_path)).error is None
    assert "headrace models pull gemma3-270m" in str(checks.check_model("gemma3-270m", str(tmp_path)))


def test_a_data_dir_is_fine_where_it_is_or_can_be_made(tmp_path):
    assert checks.check_data_dir(tmp_path).error is None
    assert checks.check_data_dir(tmp_path / "a" / "b").error is None
    assert list(tmp_path.iterdir()) == []


def test_a_data_dir_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()

    assert "cannot be written" in str(checks.check_data_dir(tmp_path / "file" / "x"))


def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = checks.check_port("127.0.0.1", port)

    assert f"127.0.0.1 port {port}" in (taken.error or "")
    assert checks.check_port("127.0.0.1", 0).error is None


def test_only_a_running_instance_has_a_configuration(instance_dir):
    file = data_dirs.config_file(instance_dir)
    file.write_text(settings.dump(settings.load(None, ["nats.url=nats://here"], {})))

    assert checks.running_config(instance_dir) is None
    with data_dirs.locked(instance_dir):
        running = checks.running_config(instance_dir)
    assert running is not None
    assert running.nats.url == "nats://here"


def _set_policy(url: str, policy: str) -> None:
    import redis

    client = redis.Redis.from_url(url)
    client.config_set("maxmemory-policy", policy)
    client.close()
