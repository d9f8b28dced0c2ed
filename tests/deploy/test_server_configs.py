"""The real servers accept their files in deploy/ and behave as headrace counts on."""

import subprocess
from pathlib import Path

import pytest
import redis

from headrace.shared.cache.redis import RedisStore
from headrace.shared.checks import check_cache, check_nats, check_streams
from headrace.shared.config import Cache
from headrace.shared.embedded import nats_server, valkey_server
from headrace.shared.embedded.ports import free_port

STOP_S = 10.0


@pytest.fixture(scope="module")
def valkey_url(root, tmp_path_factory):
    """A server on deploy/valkey.conf, moved from its port to a private socket."""
    socket = tmp_path_factory.mktemp("valkey") / "s"
    command = [valkey_server.binary(), root / "deploy/valkey.conf", "--port", "0", "--unixsocket", socket]
    with subprocess.Popen(command, cwd=socket.parent, stdout=subprocess.PIPE, text=True) as server:
        ready = any("Ready to accept connections" in line for line in server.stdout)
        yield f"unix://{socket}" if ready else pytest.fail("valkey-server did not start")
        server.terminate()
        server.communicate(timeout=STOP_S)


@pytest.fixture(scope="module")
def nats_url(root, tmp_path_factory):
    """A server on deploy/nats.conf, moved to free ports of the loopback address and a folder of its own."""
    folder, port, http_port = tmp_path_factory.mktemp("nats"), free_port("127.0.0.1"), free_port("127.0.0.1")
    moved = folder / "nats.conf"
    moved.write_text((root / "deploy/nats.conf").read_text("utf-8").replace('"/data"', f'"{folder}"'), "utf-8")
    command = [nats_server.binary(), "-c", moved, "-a", "127.0.0.1", "-p", str(port), "-m", str(http_port)]
    with subprocess.Popen(command, env={"NATS_PASSWORD": "secret"}, stderr=subprocess.PIPE, text=True) as server:
        ready = any("Server is ready" in line for line in server.stderr)
        yield f"nats://headrace:secret@127.0.0.1:{port}" if ready else pytest.fail("nats-server did not start")
        server.terminate()
        server.communicate(timeout=STOP_S)


@pytest.mark.live
async def test_the_queue_server_holds_all_streams(nats_url):
    """New enough, closed to strangers, messages large enough, and a disk budget that fits every stream's limit."""
    assert (await check_nats(nats_url, insecure_dev=False)).error is None
    assert (await check_streams(nats_url, provision=True)).error is None


@pytest.mark.live
async def test_the_queue_server_is_closed_without_the_password(nats_url):
    stranger = nats_url.replace("headrace:secret@", "")

    assert (await check_streams(stranger)).error is not None


@pytest.mark.live
def test_the_cache_client_may_do_all_it_does(valkey_url):
    store = RedisStore(Cache(url=valkey_url))
    keys = ["kv:a", "kv:b", "kv:missing"]

    assert store.ping()
    assert store.put([("kv:a", b"1"), ("kv:b", b"2")]) == 2
    assert store.get(keys) == [b"1", b"2", None]
    assert store.count_prefix(keys) == 2
    store.close()


@pytest.mark.live
def test_the_server_passes_the_check_before_the_start(valkey_url):
    """It makes room by itself, and the check may see that it does."""
    with redis.Redis.from_url(valkey_url) as client:
        limits = client.config_get("maxmemory*")

    assert check_cache(valkey_url).error is None
    assert limits["maxmemory-policy"] == "allkeys-lru"
    assert int(limits["maxmemory"]) > 0


@pytest.mark.live
@pytest.mark.parametrize("command", ["FLUSHALL", "CONFIG SET maxmemory 0", "GET other", "KEYS *", "SHUTDOWN"])
def test_nobody_may_empty_or_reconfigure_the_cache(valkey_url, command):
    with redis.Redis.from_url(valkey_url) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())


def test_nats_server_accepts_its_file(root):
    result = _check_nats(root, {"NATS_PASSWORD": "secret"})

    assert result.returncode == 0, result.stderr


def test_nats_server_does_not_start_without_a_password(root):
    result = _check_nats(root, {})

    assert "NATS_PASSWORD" in result.stderr + result.stdout
    assert result.returncode != 0


def _check_nats(root: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [nats_server.binary(), "-t", "-c", root / "deploy/nats.conf"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
