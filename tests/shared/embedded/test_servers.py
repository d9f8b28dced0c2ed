"""The embedded servers: start, answer, come back on the same address, stop, and die with their parent."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from headrace.shared.config import Cache, Nats
from headrace.shared.embedded import nats_server, tether, valkey_server
from headrace.shared.embedded.ports import free_port
from headrace.shared.embedded.process import ServerProcess, ServerStartError
from headrace.shared.errors import ConfigError


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data dir é"
    for name in ("run", "logs"):
        (folder / name).mkdir(parents=True)
    return folder


async def _exchange(url: str, line: bytes = b"") -> bytes:
    """First line a server answers on its address, after sending `line`."""
    if url.startswith("unix://"):
        reader, writer = await asyncio.open_unix_connection(urllib.request.unquote(url.removeprefix("unix://")))
    else:
        host, _, port = url.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(line)
    answer = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.live
async def test_nats_answers_with_jetstream_and_comes_back_on_the_same_port(data_dir: Path) -> None:
    server, monitoring = await nats_server.start_nats(Nats(max_file_store_bytes=1 << 30), data_dir)
    try:
        info = json.loads((await _exchange(server.url)).removeprefix(b"INFO "))
        os.kill(server.pid, signal.SIGKILL)
        code = await server.wait()
        await server.start()
        again = json.loads((await _exchange(server.url)).removeprefix(b"INFO "))
    finally:
        await server.stop()

    assert info["jetstream"] is True
    assert info["max_payload"] == 8 << 20
    assert info["host"] == "127.0.0.1"
    assert code == -signal.SIGKILL
    assert again["port"] == info["port"]
    assert monitoring.startswith("http://127.0.0.1:")
    assert _mode(data_dir / "run" / "nats.json") == 0o600
    with pytest.raises(ConnectionRefusedError):
        await _exchange(server.url)


@pytest.mark.live
async def test_nats_with_a_bad_setting_says_so(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="nats-server did not start"):
        await nats_server.start_nats(Nats(sync_interval="soon"), data_dir)


@pytest.mark.live
@pytest.mark.parametrize("depth", [0, 3], ids=["short", "long"])
async def test_valkey_is_a_bounded_cache_on_a_private_socket(data_dir: Path, depth: int) -> None:
    for _ in range(depth):
        data_dir = data_dir / ("x" * 60)
    for name in ("run", "logs"):
        (data_dir / name).mkdir(parents=True, exist_ok=True)

    server = await valkey_server.start_valkey(Cache(max_bytes=64 << 20), data_dir)
    try:
        pong = await _exchange(server.url, b"PING\r\n")
        path = Path(urllib.request.unquote(server.url.removeprefix("unix://")))
        mode = _mode(path)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.start()
        again = await _exchange(server.url, b"PING\r\n")
    finally:
        await server.stop()

    assert pong == again == b"+PONG\r\n"
    assert mode == 0o700
    assert len(os.fsencode(path)) < 108


def test_valkey_evicts_and_writes_nothing_to_disk(tmp_path: Path) -> None:
    text = valkey_server.server_config(Cache(max_bytes=5), tmp_path / 'a"b', tmp_path)

    assert "maxmemory 5\n" in text
    assert "maxmemory-policy allkeys-lru\n" in text
    assert 'save ""\n' in text
    assert "port 0\n" in text
    assert 'a\\"b"' in text


def test_nats_writes_below_the_data_dir_only(tmp_path: Path) -> None:
    config = nats_server.server_config(Nats(sync_interval="always"), tmp_path, 1, 2)

    assert config["listen"] == "127.0.0.1:1"
    assert config["http"] == "127.0.0.1:2"
    assert str(config["log_file"]).startswith(str(tmp_path))
    jetstream = config["jetstream"]
    assert isinstance(jetstream, dict)
    assert jetstream["store_dir"] == str(tmp_path / "nats")
    assert jetstream["sync_interval"] == "always"


async def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("words of an earlier run\n")
    server = ServerProcess("thing", (sys.executable, "-c", "print('disk full'); raise SystemExit(3)"), "", log, _never)

    with pytest.raises(ServerStartError, match=r"^thing did not start: disk full$"):
        await server.start()


async def test_a_server_that_never_answers_is_stopped(tmp_path: Path) -> None:
    server = ServerProcess("thing", (sys.executable, "-c", "import time; time.sleep(60)"), "", tmp_path / "log", _never)

    with pytest.raises(ServerStartError, match=r"no answer within 0\.2 s"):
        await server.start(deadline_s=0.2)

    assert await server.wait() == -signal.SIGKILL


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def _never() -> bool:
    return False


_PARENT = """
import asyncio, sys
from headrace.shared.embedded.tether import spawn
async def main():
    child = await spawn([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"], output=None)
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


async def test_a_tethered_process_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    lines = {await parent.stdout.readline() for _ in range(2)}

    parent.kill()
    await parent.wait()

    # The child holds the other end of the pipe: end of file proves that it is gone.
    assert b"up\n" in lines
    assert await asyncio.wait_for(parent.stdout.read(), 5) == b""


async def test_a_tethered_process_has_its_own_session() -> None:
    code = "import os; print(os.getsid(0) == os.getpid())"
    child = await tether.spawn([sys.executable, "-c", code], output=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()

    assert out == b"True\n"


def test_a_free_port_lies_below_the_range_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    ports = {free_port() for _ in range(20)}

    assert len(ports) > 1
    assert all(10_000 <= port < first for port in ports) or first <= 11_000
