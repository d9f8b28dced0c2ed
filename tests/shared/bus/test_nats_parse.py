"""The wire, cut at every place: the same frames whatever pieces the bytes come in."""

import asyncio

import nats.errors
import pytest

from headrace.shared.bus.nats_parse import FrameParser
from headrace.shared.bus.nats_wire import Frame, header_block, parse_headers


def hmsg(start: bytes, block: bytes, data: bytes) -> bytes:
    """A message with headers, its sizes counted."""
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (start, len(block), len(block) + len(data), block, data)


WIRE = b"".join(
    (
        b"PING\r\n",
        b"MSG a.b 7 3\r\nx\r\n\r\n",
        b"MSG a.b 7 reply.to 0\r\n\r\n",
        b"+OK\r\n",
        hmsg(b"c 8", b"NATS/1.0\r\nKey: a b\r\n\r\n", b"\x00\xff"),
        hmsg(b"c 8 back", b"NATS/1.0 404 No Messages\r\nA:\r\n\r\n", b""),
        b"-ERR 'Slow Consumer'\r\n",
    )
)


class Taken:
    """Everything a parser hands on, in order."""

    def __init__(self) -> None:
        self.lines: list[object] = []
        self.parser = FrameParser(self.take, self.control)

    def take(self, number: int, frame: Frame) -> None:
        self.lines.append((number, frame.subject, frame.data, frame.reply, dict(frame.headers), frame.status))

    async def control(self, line: bytes) -> None:
        await asyncio.sleep(0)
        self.lines.append(line)


EXPECTED = [
    b"PING",
    (7, "a.b", b"x\r\n", "", {}, ""),
    (7, "a.b", b"", "reply.to", {}, ""),
    b"+OK",
    (8, "c", b"\x00\xff", "", {"Key": "a b"}, ""),
    (8, "c", b"", "back", {"Status": "404", "Description": "No Messages", "A": ""}, "404"),
    b"-ERR 'Slow Consumer'",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(WIRE)])
async def test_frames_are_the_same_whatever_pieces_the_bytes_come_in(size):
    taken = Taken()

    for start in range(0, len(WIRE), size):
        await taken.parser.parse(WIRE[start : start + size])

    assert taken.lines == EXPECTED


async def test_what_was_half_there_is_forgotten_with_its_connection():
    taken = Taken()
    await taken.parser.parse(b"MSG a 1 10\r\nhalf")

    taken.parser.reset()
    await taken.parser.parse(b"MSG a 1 2\r\nok\r\n")

    assert taken.lines == [(1, "a", b"ok", "", {}, "")]


async def test_bytes_of_a_connection_that_ended_while_a_line_was_handled_are_dropped():
    taken = Taken()

    async def reconnect(line: bytes) -> None:
        taken.parser.reset()

    taken.parser = FrameParser(taken.take, reconnect)
    await taken.parser.parse(b"-ERR 'stale'\r\nMSG a 1 2\r\nno\r\n")

    assert taken.lines == []


NO_NATS = (
    b"MSG a x 1\r\n",
    b"MSG a\r\n",
    b"HMSG a 1 5\r\n",
    b"MSG a 1 1\r\nxyz",
    b"MOVE a 1 1\r\n",
    b"x" * 5000,
)


@pytest.mark.parametrize("line", NO_NATS)
async def test_what_is_no_nats_breaks_the_connection(line):
    with pytest.raises(nats.errors.ProtocolError):
        await Taken().parser.parse(line)


def test_headers_survive_the_way_out_and_back():
    headers = {"Nats-Msg-Id": "a:b", "Other": "ü 1"}

    assert parse_headers(header_block(headers)) == headers


@pytest.mark.parametrize("value", ["a\nB: c", "a\r\n\r\nPUB x 0"])
def test_a_header_cannot_break_out_of_its_line(value):
    with pytest.raises(nats.errors.BadHeaderError):
        header_block({"Nats-Msg-Id": value})
