"""Output passed on in whole lines, without waiting for a reader."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.up.relay import Lines, Relay, RelayText


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_come_through(pipe):
    source, sink = pipe
    Relay(sink).write(b"one\ntwo\n")

    assert os.read(source, 100) == b"one\ntwo\n"


def test_our_own_stderr_takes_any_text(pipe):
    source, sink = pipe
    print("eins\ud800 é", file=RelayText(Relay(sink)))

    assert os.read(source, 100) == "eins\\ud800 é\n".encode()


def test_a_reader_that_sleeps_costs_lines_and_never_blocks(pipe):
    relay = Relay(pipe[1])
    for _ in range(300):
        relay.write(b"x" * 999 + b"\n")

    assert relay.num_dropped > 0


def test_a_reader_that_left_costs_lines_only():
    source, sink = os.pipe()
    os.close(source)
    relay = Relay(sink)
    relay.write(b"one\n")
    os.close(sink)

    assert relay.num_dropped == 1


@given(st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\n\n", b" ", b"c\nd", "é".encode()])))
def test_nothing_is_lost_or_cut_whatever_the_pieces(pieces):
    lines = Lines()
    out = [lines.feed(piece) for piece in pieces if piece]
    end = lines.feed(b"")

    whole = b"".join(pieces)
    assert all(part == b"" or part.endswith(b"\n") for part in [*out, end])
    assert b"".join([*out, end]) == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")
    words = [line.strip() for line in whole.decode().split("\n") if line.strip()]
    assert lines.last == (words[-1] if words else "")
