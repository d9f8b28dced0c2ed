"""One connection to the store on which a whole exchange has one deadline.

redis-py opens it, logs in and hangs up; the exchanges go past its parser (`resp`). It also bounds each read alone, so
that a server that drips bytes could hold a caller for minutes. This transport gives every send and receive what is left
of the exchange's budget; each MiB received adds to it, a drip adds nothing. Only looking up a host name is outside the
budget: it is the operating system's, and has no deadline of ours.
"""

import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from headrace.shared.cache.resp import Command, Reader, pack

CONNECT_S = 0.2
S_PER_BYTE = 0.005 / (1 << 20)

Address = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class _TimedSocket(socket.socket):
    """A stream socket that refuses to wait beyond `deadline` (monotonic seconds)."""

    deadline = 0.0

    def left_s(self) -> float:
        """Seconds left; raises TimeoutError when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("budget spent")
        return left

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        self.settimeout(self.left_s())
        data = super().recv(bufsize, flags)
        self.deadline += len(data) * S_PER_BYTE
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        self.settimeout(self.left_s())
        num_read = super().recv_into(buffer, nbytes, flags)
        self.deadline += num_read * S_PER_BYTE
        return num_read

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        self.settimeout(self.left_s())
        super().sendall(data, flags)


class _Wire(AbstractConnection):
    """redis-py's protocol over a timed socket."""

    host = ""
    port = 0

    def __init__(self, address: Address, **login: Any) -> None:
        super().__init__(
            protocol=2,  # no greeting to pay for on a fresh connection
            driver_info=None,
            retry=Retry(NoBackoff(), 0),
            **login,
        )
        self.host, self.port = (address, 0) if isinstance(address, str) else address
        self._timed: _TimedSocket | None = None
        self.reader: Reader | None = None
        """Reads the replies on the current socket."""
        self._until = 0.0

    def begin(self, deadline: float) -> None:
        """Make ready for an exchange: drop a stale connection, and leave the new deadline for the next one."""
        self._until = deadline
        if self._timed is None or self._timed.fileno() < 0:
            return
        assert self.reader is not None
        self._timed.deadline = deadline
        poll = select.poll()
        poll.register(self._timed, select.POLLIN)
        if poll.poll(0) or not self.reader.is_empty():  # the server has hung up, or left bytes nobody asked for
            self.disconnect()  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        if not self.port:
            return self._reach(socket.AF_UNIX, self.host)
        failure: OSError = ConnectionError(f"{self.host} has no address")
        for family, _, _, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            try:
                return self._reach(family, address)
            except OSError as error:
                failure = error
        raise failure

    def _reach(self, family: int, address: Any) -> socket.socket:
        sock = self._timed = _TimedSocket(family, socket.SOCK_STREAM)
        sock.deadline = self._until
        try:
            sock.settimeout(min(CONNECT_S, sock.left_s()))
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            self.reader = Reader(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def _host_error(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host

    def repr_pieces(self) -> list[tuple[str, str | int]]:
        """What redis-py shows of a connection."""
        return [("address", self._host_error()), ("db", self.db)]


class Connection:
    """One connection, opened when first used. Not thread-safe: one user at a time."""

    def __init__(self, address: Address, **login: Any) -> None:
        """`login`: db, username, password."""
        self._wire: Any = _Wire(address, **login)  # redis-py is half annotated; this class is where that ends

    def exchange(self, commands: Sequence[Command], budget_s: float) -> list[Any]:
        """Send all commands and read all replies; refusals are among them, as ResponseError objects.

        Raises RedisError, OSError, or ValueError when the server speaks another protocol; drop the connection then.
        """
        self._wire.begin(time.monotonic() + budget_s)
        self._wire.connect()
        self._wire.send_packed_command(pack(commands))
        return [self._wire.reader.reply() for _ in commands]

    def drop(self) -> None:
        """Close; idempotent."""
        self._wire.disconnect()
