"""The server's half of the NATS protocol: bytes in, frames out. Knows how messages are framed, and no other line."""

from collections.abc import Awaitable, Callable

from nats.errors import ProtocolError

from headrace.shared.bus.nats_wire import Frame

_CRLF = b"\r\n"
_MESSAGES = b"MHmh"
_MOST_LINE_BYTES = 4096


class FrameParser:
    """Cuts the stream; has the form that nats-py expects of its own parser."""

    def __init__(self, take: Callable[[int, Frame], None], control: Callable[[bytes], Awaitable[None]]) -> None:
        """`take` gets each message with the number of its subscription, `control` every other line."""
        self._take = take
        self._control = control
        self._buf = bytearray()

    def reset(self) -> None:
        """Forget what is not complete yet: a new connection begins."""
        self._buf = bytearray()

    async def parse(self, data: bytes = b"") -> None:
        """Take more bytes. Raises ProtocolError on anything that is no NATS."""
        buf = self._buf
        buf += data
        position = 0
        while (end := buf.find(_CRLF, position)) >= 0:
            if buf[position] in _MESSAGES:
                after = self._message(buf, position, end)
                if not after:
                    break
                position = after
                continue
            line = bytes(buf[position:end])
            del buf[: end + len(_CRLF)]
            position = 0
            await self._control(line)
            if self._buf is not buf:
                return
        del buf[:position]
        if len(buf) > _MOST_LINE_BYTES and buf.find(_CRLF, 0, _MOST_LINE_BYTES) < 0:
            raise ProtocolError

    def _message(self, buf: bytearray, start: int, end: int) -> int:
        """Hand on the message whose first line is `buf[start:end]`; where it ends, or 0 while it is not complete.

        `MSG <subject> <number> [reply] <size>` or `HMSG <subject> <number> [reply] <size of headers> <size>`.
        """
        words = buf[start:end].decode().split()
        num_sizes = {"MSG": 1, "HMSG": 2}.get(words[0].upper(), 0)
        if not num_sizes or not 3 <= len(words) - num_sizes <= 4:
            raise ProtocolError
        try:
            number, num_header, size = int(words[2]), int(words[-2]) if num_sizes > 1 else 0, int(words[-1])
        except ValueError:
            raise ProtocolError from None
        first = end + len(_CRLF)
        middle, last = first + num_header, first + size
        after = last + len(_CRLF)
        if len(buf) < after:
            return 0
        if buf[last:after] != _CRLF:
            raise ProtocolError
        reply = words[3] if len(words) > 3 + num_sizes else ""
        self._take(number, Frame(words[1], bytes(buf[middle:last]), reply, bytes(buf[first:middle])))
        return after
