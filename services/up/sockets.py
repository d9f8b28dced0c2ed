"""The listening socket of the HTTP front door: opened once by the supervisor, shared by all ingress processes.

It outlives a restart of any ingress, so a client that connects meanwhile waits instead of being refused.
"""

import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.shared.errors import ConfigError

_BACKLOG = 1024


@contextmanager
def listening(host: str, port: int, *, insecure_dev: bool) -> Iterator[socket.socket]:
    """Listen on `host`:`port` (0: any free port); raises ConfigError when that is not possible or not allowed."""
    if not insecure_dev and not is_loopback(host):
        raise ConfigError(
            f"up.host {host} is not a loopback address: access keys do not exist yet, so anybody could use this server;"
            " --insecure-dev allows it"
        )
    with _open(host, port) as listener:
        yield listener


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name counts only if it is `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def base_url(listener: socket.socket) -> str:
    """`http://H:P` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _open(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(_why(host, port, error)) from error
    return listener


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use"
    return f"cannot listen on {host} port {port}: {error.strerror}"
