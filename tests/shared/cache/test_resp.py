"""The wire of the store: replies arrive in any pieces, large values are received in place and sent as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from headrace.shared.cache.resp import Reader, pack

LARGE = bytes(range(256)) * 100
REPLIES = [
    (b"+OK\r\n", b"OK"),
    (b":17\r\n", 17),
    (b"$-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$5\r\na\r\n\xff\x00\r\n", b"a\r\n\xff\x00"),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n$1\r\nx\r\n$-1\r\n:4\r\n", [b"x", None, 4]),
    (b"$25600\r\n" + LARGE + b"\r\n", LARGE),
]


class Pieces:
    """A socket that gives what it holds in pieces of the wanted sizes, then ends."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data = data
        self.sizes = sizes

    def recv_into(self, buffer: memoryview) -> int:
        size = self.sizes.pop() if self.sizes else len(buffer)
        piece = self.data[: min(size, len(buffer))]
        buffer[: len(piece)] = piece
        self.data = self.data[len(piece) :]
        return len(piece)


@given(st.lists(st.sampled_from(REPLIES), max_size=12), st.lists(st.integers(1, 9000), max_size=30))
def test_replies_are_read_whole_whatever_the_pieces(replies, sizes):
    reader = Reader(Pieces(b"".join(sent for sent, _ in replies), sizes))

    assert [reader.reply() for _ in replies] == [meant for _, meant in replies]
    assert reader.is_empty()


def test_a_refusal_is_a_reply():
    reply = Reader(Pieces(b"-OOM no room\r\n", [])).reply()

    assert isinstance(reply, ResponseError)
    assert str(reply) == "OOM no room"


@pytest.mark.parametrize(
    "sent",
    [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*1\r\n*1\r\n:1\r\n", b"\r\n", b"x" * 9000, b"$536870913\r\n", b"%1\r\n"],
)
def test_what_is_no_reply_is_refused(sent):
    with pytest.raises(ValueError):  # noqa: PT011  # whatever it says: to the store it is all the same
        Reader(Pieces(sent, [])).reply()


@pytest.mark.parametrize("sent", [b"", b"+OK", b"$5\r\nab", b"$2\r\nab", b"*2\r\n:1\r\n"])
def test_an_end_in_the_middle_is_a_broken_connection(sent):
    with pytest.raises(ConnectionError):
        Reader(Pieces(sent, [])).reply()


def test_bytes_beyond_the_last_reply_are_noticed():
    reader = Reader(Pieces(b":1\r\n:2\r\n", []))
    reader.reply()

    assert not reader.is_empty()


def test_large_parts_are_sent_as_they_are_and_small_ones_together():
    packed = pack([("SET", "k", (b"head", LARGE), "EX", 9), ("PING",)])

    assert b"".join(packed) == (
        b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$25604\r\nhead" + LARGE + b"\r\n$2\r\nEX\r\n$1\r\n9\r\n*1\r\n$4\r\nPING\r\n"
    )
    assert [part is LARGE for part in packed] == [False, True, False]
