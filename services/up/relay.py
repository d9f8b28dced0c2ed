"""Passing the children's output on to our stderr without ever waiting for whoever reads it.

A reader that went to sleep fills its pipe; then lines are dropped here (each process keeps its own log file) instead
of stopping the whole installation one blocked write after another.
"""

import io
import os
import select

_ATOMIC_BYTES = select.PIPE_BUF
_KEEP_BYTES = 2048


class Relay:
    """Writes whole lines to a file descriptor while it takes them."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.num_dropped = 0
        """Lines lost because nobody read."""

    def write(self, lines: bytes) -> None:
        """Pass on whole lines, or drop and count them."""
        for line in lines.splitlines(keepends=True):
            # A pipe that polls writable takes PIPE_BUF bytes without blocking.
            for start in range(0, len(line), _ATOMIC_BYTES):
                if not self._can_write():
                    self.num_dropped += 1
                    break
                os.write(self._fd, line[start : start + _ATOMIC_BYTES])

    def _can_write(self) -> bool:
        return any(event & select.POLLOUT and not event & select.POLLERR for _, event in self._poll.poll(0))


class Lines:
    """Cuts a stream of bytes into whole lines and remembers the last one."""

    def __init__(self) -> None:
        self._rest = b""
        self.last = ""
        """The newest line that is not blank."""

    def feed(self, data: bytes) -> bytes:
        """Add bytes; returns the lines completed by them (all that is left when `data` is empty: the end)."""
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        if not data:
            whole, newline, rest = self._rest, b"\n" if self._rest else b"", b""
        self._rest = rest
        words = [line for line in whole.splitlines() if line.strip()]
        if words:
            self.last = words[-1][-_KEEP_BYTES:].decode("utf-8", "replace").strip()
        return whole + newline


class RelayText(io.TextIOBase):
    """Our own stderr, written to in the same way: a log line must not stop the supervisor either."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Pass text on; see Relay."""
        self._relay.write(text.encode("utf-8", "backslashreplace"))
        return len(text)
