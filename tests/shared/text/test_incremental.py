"""Bytes to text in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.text.incremental import IncrementalDecoder


def decode(pieces: list[bytes]) -> list[str]:
    decoder = IncrementalDecoder()
    return [*map(decoder.push, pieces), decoder.flush()]


def test_characters_are_held_until_complete():
    pieces = [bytes([byte]) for byte in "讲🙂é".encode()]

    out = decode(pieces)

    assert [text for text in out if text] == ["讲", "🙂", "é"]


def test_bytes_that_cannot_complete_are_replaced_at_once():
    assert decode([b"\x80"])[0] == "\ufffd"
    assert decode([b"\xf0", b"\x9f", b"a"])[2] == "\ufffda"


def test_an_incomplete_character_is_replaced_only_at_the_end():
    assert decode([b"a", b"\xe8\xae"]) == ["a", "", "\ufffd"]


@given(st.lists(st.binary(max_size=6)))
def test_any_cut_gives_the_same_text(pieces):
    assert "".join(decode(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text())
def test_valid_text_never_shows_a_replacement_it_did_not_contain(text):
    out = decode([bytes([byte]) for byte in text.encode()])

    assert "".join(out) == text
