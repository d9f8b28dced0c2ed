"""One question to the HTTP front door from outside: would it take a request now."""

import asyncio
import socket

_LIMIT_S = 2.0


async def is_open(address: tuple[str, int]) -> bool:
    """Whether `GET /health/ready` at `address` answers 200: ingress' own view of the registry, not ours."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET /health/ready HTTP/1.1\r\nHost: headrace\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def reachable(listener: socket.socket) -> tuple[str, int]:
    """An address of this machine behind which the listening socket is found (it may listen on all of them)."""
    host, port = listener.getsockname()[:2]
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # recognised here, not listened on
    return local.get(host, host), port
