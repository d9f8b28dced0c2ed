"""Free loopback ports for servers that must come back on the same port."""

import secrets
import socket
from pathlib import Path

_FIRST = 10_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now; the caller must be ready to try another.

    It lies below the range the kernel hands to outgoing connections: while the server is away, a client that keeps
    reconnecting from that range would sooner or later be given the server's own port, connect to itself and keep it.
    """
    end = _first_outgoing()
    for _ in range(100 if end > _FIRST + 1000 else 0):
        port = _FIRST + secrets.randbelow(end - _FIRST)
        if _can_bind(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _first_outgoing() -> int:
    try:
        return int(_RANGE_FILE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
