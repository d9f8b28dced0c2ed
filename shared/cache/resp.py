"""Redis protocol 2 for large values: none is copied between the caller and the socket, in either direction.

redis-py gathers a reply in one growing buffer and cuts values out of it, which costs more than the network does. Here a
value is received where it will stay, and a value to send may come in parts.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from headrace.shared.cache import Buffer

Argument = str | bytes | int | tuple[Buffer, ...]
Command = tuple[Argument, ...]

_HEAD_BYTES = 8 << 10
"""Read ahead at most this much: what is read ahead of a value is copied."""
_SMALL_BYTES = 4 << 10
"""Parts below this size travel together."""
_MOST_BYTES = 512 << 20
"""The protocol's own limit of a value."""


class Source(Protocol):
    """Where replies come from: a socket."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive at most what fits; 0 at the end."""


class Reader:
    """Reads replies one by one. Raises ValueError for what is none, OSError as the source does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = bytearray(_HEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def is_empty(self) -> bool:
        """Whether nothing was received beyond the last reply."""
        return self._start == self._end

    def reply(self) -> Any:
        """The next reply; a refusal is returned as a ResponseError object."""
        line = self._line()
        if line[:1] == b"*":
            return None if int(line[1:]) < 0 else [self._item(self._line()) for _ in range(int(line[1:]))]
        return self._item(line)

    def _item(self, line: bytes) -> Any:
        """A reply that holds no others: nobody here asks for nested ones."""
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return self._value(int(rest))
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return ResponseError(rest.decode(errors="replace"))
        raise ValueError("not a reply of protocol 2")

    def _line(self) -> bytes:
        while (found := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            self._receive()
        line = bytes(self._view[self._start : found])
        self._start = found + 2
        return line

    def _value(self, size: int) -> bytearray | None:
        if size < 0:
            return None
        if size > _MOST_BYTES:
            raise ValueError("a value beyond the protocol's limit")
        value = bytearray(size)
        done = min(size, self._end - self._start)
        value[:done] = self._view[self._start : self._start + done]
        self._start += done
        view = memoryview(value)
        while done < size:
            done += self._received(view[done:])
        while self._end - self._start < len(b"\r\n"):
            self._receive()
        self._start += len(b"\r\n")
        return value

    def _receive(self) -> None:
        """Read ahead into the free part of the buffer."""
        if self._start:
            left = self._end - self._start
            self._view[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        if self._end == _HEAD_BYTES:
            raise ValueError("a line without an end")
        self._end += self._received(self._view[self._end :])

    def _received(self, room: memoryview) -> int:
        num = self._source.recv_into(room)
        if not num:
            raise ConnectionError("closed by the server")
        return num


def pack(commands: Sequence[Command]) -> list[Buffer]:
    """Commands as buffers to be sent one after another; large parts are the caller's own."""
    packed: list[Buffer] = []
    small = bytearray()
    for command in commands:
        small += b"*%d\r\n" % len(command)
        for argument in command:
            parts = _parts(argument)
            small += b"$%d\r\n" % sum(len(part) for part in parts)
            for part in parts:
                if len(part) < _SMALL_BYTES:
                    small += part
                else:
                    packed += (small, part)
                    small = bytearray()
            small += b"\r\n"
    packed.append(small)
    return packed


def _parts(argument: Argument) -> tuple[Buffer, ...]:
    if isinstance(argument, tuple):
        return argument
    return (argument if isinstance(argument, bytes) else str(argument).encode(),)
