"""Token ids to events."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.messages import Sampling
from headrace.shared.records import EndEvent, TextEvent, TextState
from headrace.shared.text.pipeline import TextPipeline
from headrace.shared.text.scripted import ScriptedTokenizer

BOS, EOS, THINK = 256, 257, 258


def pipeline(extra: dict[int, bytes] | None = None, *, prompt: list[int] | None = None, **sampling) -> TextPipeline:
    return TextPipeline(ScriptedTokenizer(), Sampling(**sampling), extra, prompt=prompt or [])


def texts(events) -> str:
    return "".join(event.s for event in events if isinstance(event, TextEvent))


def test_one_push_gives_at_most_one_text_event():
    assert pipeline().push(b"hello") == [TextEvent("hello")]


def test_a_push_that_completes_nothing_gives_no_event():
    assert pipeline().push("讲".encode()[:2]) == []


def test_the_end_event_follows_the_held_text():
    tokens = pipeline(stop=("abcd",))

    first, last = tokens.push(b"xabc"), tokens.finish("length")

    assert first == [TextEvent("x")]
    assert last == [TextEvent("abc"), EndEvent("length")]
    assert tokens.state == TextState(chars=4)


def test_a_stop_string_overrides_the_cause_and_names_itself():
    tokens = pipeline({300: b"Hel", 301: b"lo", 302: b" wor", 303: b"ld"}, stop=("lo w",))

    events = tokens.push([300, 301, 302, 303])

    assert events == [TextEvent("Hel")]
    assert (tokens.match, tokens.num_consumed) == ("lo w", 3)
    assert tokens.finish("length") == [EndEvent("stop", "lo w")]


def test_ids_after_a_match_are_ignored():
    tokens = pipeline(stop=("b",))

    assert texts(tokens.push(b"ab")) == "a"
    assert tokens.push(b"cd") == []
    assert tokens.num_consumed == 2


def test_a_stop_string_of_several_bytes_leaves_no_replacement():
    tokens = pipeline(stop=("。",))

    events = tokens.push("好。".encode())

    assert (texts(events), tokens.match) == ("好", "。")


def test_include_stop_shows_the_match_and_nothing_after_it():
    tokens = pipeline({300: b"ND of"}, stop=("END",), include_stop=True)

    assert texts(tokens.push([ord("E"), 300])) == "END"


def test_a_stop_id_ends_the_choice_and_is_hidden():
    tokens = pipeline(stop_ids=(ord("b"),))

    events = tokens.push(b"abc") + tokens.finish("eos")

    assert events == [TextEvent("a"), EndEvent("stop", ord("b"))]


def test_a_stop_id_is_shown_when_asked_for():
    assert texts(pipeline(stop_ids=(ord("b"),), include_stop=True).push(b"abc")) == "ab"


def test_text_held_at_a_stop_id_is_released():
    tokens = pipeline(stop=("bcd",), stop_ids=(EOS,))

    events = tokens.push([*b"abc", EOS]) + tokens.finish("eos")

    assert (texts(events), events[-1]) == ("abc", EndEvent("stop", EOS))


def test_control_tokens_are_hidden_unless_asked_for():
    ids = [THINK, *b"a", EOS]

    assert texts(pipeline().push(ids)) == "a"
    assert texts(pipeline(skip_special=False).push(ids)) == "<think>a</s>"


def test_invalid_bytes_are_replaced_and_the_text_goes_on():
    tokens = pipeline()

    events = tokens.push([0x80, *b"a", 0xE8]) + tokens.finish("eos")

    assert texts(events) == "\ufffda\ufffd"


def test_an_id_outside_the_vocabulary_has_no_text():
    assert pipeline().push([70_000]) == []


def test_a_character_cut_by_the_prompt_is_completed():
    whole = "🙂".encode()

    assert texts(pipeline(prompt=[*b"Sunny ", *whole[:2]]).push(whole[2:])) == "🙂"


EXTRA = {300: b"lo w", 301: "讲🙂".encode(), 302: b"\xf0\x9f", 303: b"", 304: b"ab"}
tokens_lists = st.lists(st.sampled_from([*b"ab lo", 0x80, 0xE8, BOS, EOS, THINK, *EXTRA]), max_size=30)
samplings = st.builds(
    Sampling,
    stop=st.lists(st.sampled_from(["a", "ab", "lo w", "b l", "讲", "🙂a", "\ufffd", "<think>"]), max_size=3).map(tuple),
    stop_ids=st.lists(st.sampled_from([ord("o"), EOS]), max_size=1).map(tuple),
    include_stop=st.booleans(),
    skip_special=st.booleans(),
)


def naive(ids: list[int], sampling: Sampling) -> tuple[str, str | int | None]:
    """Whole decoding of ever longer prefixes, cut at the first stop."""
    tokenizer = ScriptedTokenizer()
    data = b""
    for token in ids:
        is_stop_id = token in sampling.stop_ids
        is_special = token in tokenizer.special_ids
        is_hidden = (is_special and sampling.skip_special) or (is_stop_id and not sampling.include_stop)
        data += b"" if is_hidden else EXTRA.get(token, tokenizer.token_bytes(token))
        found = first_stop(data, sampling, is_end=False)
        if found is not None:
            return found
        if is_stop_id:
            return first_stop(data, sampling, is_end=True, instead=token) or (data.decode("utf-8", "replace"), token)
    return first_stop(data, sampling, is_end=True) or (data.decode("utf-8", "replace"), None)


def first_stop(data: bytes, sampling: Sampling, *, is_end: bool, instead: int | None = None):
    text = data.decode("utf-8", "replace")
    if not is_end and text.endswith("\ufffd"):
        pending = next((cut for cut in range(1, 4) if is_pending(data[-cut:])), 0)
        text = data[: len(data) - pending].decode("utf-8", "replace")
    hits = [(text.index(stop), -len(stop), stop) for stop in sampling.stop if stop in text]
    if not hits:
        return None
    start, _, stop = min(hits)
    end = start + len(stop) if sampling.include_stop else start
    return text[:end], stop if instead is None else instead


def is_pending(tail: bytes) -> bool:
    """Whether these bytes may still become one character."""
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


@given(ids=tokens_lists, sampling=samplings, cuts=st.lists(st.integers(0, 30), max_size=6))
def test_any_grouping_gives_the_text_and_state_of_the_whole(ids, sampling, cuts):
    tokens = TextPipeline(ScriptedTokenizer(), sampling, EXTRA)
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})

    events = [event for start, end in pairwise(bounds) for event in tokens.push(ids[start:end])]
    events += tokens.finish("length")

    text, match = naive(ids, sampling)
    assert texts(events) == text
    assert events[-1] == EndEvent("length" if match is None else "stop", match)
    assert sum(isinstance(event, EndEvent) for event in events) == 1
    assert tokens.state.chars == len(text)


@given(ids=tokens_lists, sampling=samplings, cut=st.integers(0, 30))
def test_a_successor_that_replays_goes_on_where_its_predecessor_stopped(ids, sampling, cut):
    first = TextPipeline(ScriptedTokenizer(), sampling, EXTRA)
    logged = first.push(ids[:cut])
    second = TextPipeline(ScriptedTokenizer(), sampling, EXTRA)

    second.replay(ids[:cut])

    assert second.state == first.state
    rest = second.push(ids[cut:]) + second.finish("eos")
    assert texts(logged + rest) == naive(ids, sampling)[0]
