"""Stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.text.stop import StopMatcher


def play(stops: list[str], pieces: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """Released pieces (the flush last) and the match."""
    matcher = StopMatcher(stops, include=include)
    released = []
    for piece in pieces:
        text, match = matcher.push(piece)
        released.append(text)
        if match is not None:
            return released, match
    return [*released, matcher.flush()], None


def test_a_match_across_pieces_keeps_what_stands_before_it():
    assert play(["lo w"], ["Hel", "lo", " wor", "ld"]) == (["He", "l", ""], "lo w")


def test_a_near_miss_is_released_once():
    assert play(["abcd"], ["ab", "c", "x"]) == (["", "", "abcx", ""], None)
    assert play(["\n", "Carol:"], ["Car", "ol", "!"]) == (["", "", "Carol!", ""], None)


def test_held_text_is_released_at_the_end():
    assert play(["<|end|>assist"], ["Yes.", "<|end|>", "as"]) == (["Yes.", "", "", "<|end|>as"], None)


def test_the_earliest_position_wins_then_the_longest():
    assert play(["world", "lo"], ["hello world"]) == (["hel"], "lo")
    assert play(["lo", "lo wo"], ["hello world"]) == (["hel"], "lo wo")


def test_text_before_the_match_in_the_same_piece_is_kept():
    assert play(["\n"], ["?\n"]) == (["?"], "\n")


def test_include_keeps_the_match_and_nothing_after_it():
    assert play(["END"], ["the EN", "D of it"], include=True) == (["the ", "END"], "END")


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])


def test_without_stop_strings_nothing_is_held():
    assert play([], ["a", "b"]) == (["a", "b", ""], None)


stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
texts = st.text(alphabet="ab", max_size=4)


@given(stops=stop_lists, pieces=st.lists(texts, max_size=12))
def test_released_text_is_the_text_cut_at_the_first_piece_that_completes_a_stop(stops, pieces):
    released, match = play(stops, pieces)

    assert ("".join(released), match) == cut_naively(stops, pieces)


def cut_naively(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    for num in range(1, len(pieces) + 1):
        text = "".join(pieces[:num])
        hits = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
        if hits:
            start, _, stop = min(hits)
            return text[:start], stop
    return "".join(pieces), None


@given(stops=stop_lists.filter(bool), text=st.text(alphabet="abc"))
def test_only_a_possible_beginning_of_a_stop_is_held_back(stops, text):
    matcher = StopMatcher(stops)

    released, match = matcher.push(text)

    held = text[len(released) :]
    assert match is not None or not held or any(stop.startswith(held) for stop in stops)
