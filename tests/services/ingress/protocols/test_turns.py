"""Messages in all the shapes clients send them."""

import pytest

from headrace.shared.errors import RequestError
from headrace.shared.messages import ToolCall, Turn

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


@pytest.fixture
def turns(parse):
    return lambda *messages: parse(messages=list(messages)).prompt.turns


def test_every_role_maps_to_one_of_four(turns):
    read = turns(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u", "name": "ann"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
        {"role": "user", "content": "w"},
    )

    assert read == (
        Turn(role="system", text="s"),
        Turn(role="system", text="d"),
        Turn(role="user", text="u", name="ann"),
        Turn(role="assistant", text="a"),
        Turn(role="user", text="v"),
        Turn(role="user", text="w"),
    )


def test_parts_are_joined_by_line_for_input_and_directly_for_the_assistant(turns):
    parts = [{"type": "text", "text": "Wh"}, "ill"]

    read = turns({"role": "user", "content": parts}, {"role": "assistant", "content": parts})

    assert [turn.text for turn in read] == ["Wh\nill", "Whill"]


def test_an_empty_string_stays_an_empty_string(turns):
    read = turns({"role": "user", "content": ""}, {"role": "assistant", "content": ""})

    assert [turn.text for turn in read] == ["", ""]


def test_a_round_trip_with_tools_becomes_turns(turns):
    read = turns(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "21"}]},
    )

    call = ToolCall(id="call_1", name="f", arguments={"a": "é"})
    assert read[1:] == (
        Turn(role="assistant", tool_calls=(call,)),
        Turn(role="tool", text="21", tool_call_id="call_1"),
    )


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("{}", {}),
        ("", ""),
        ("[1]", "[1]"),
        ("{broken", "{broken"),
        ({"a": 1}, {"a": 1}),
        ("[" * 5000, "[" * 5000),
        ('{"a":' * 80 + "1" + "}" * 80, '{"a":' * 80 + "1" + "}" * 80),
    ],
)
def test_arguments_become_an_object_or_stay_text(turns, arguments, read):
    call = CALL | {"function": {"name": "f", "arguments": arguments}}

    (turn,) = turns({"role": "assistant", "tool_calls": [call]})

    assert turn.tool_calls[0].arguments == read


def test_legacy_calls_and_their_results_find_each_other(turns):
    read = turns(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    )

    assert read[1] == Turn(role="tool", text="1", name="f", tool_call_id=read[0].tool_calls[0].id)


def test_a_tool_message_without_id_answers_the_only_open_call(turns):
    read = turns({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "1"})

    assert read[1].tool_call_id == "call_1"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_under_both_names(turns, key):
    (turn,) = turns({"role": "assistant", "content": "x", key: "because"})

    assert turn.reasoning == "because"


def test_refusals_count_as_text(turns):
    read = turns(
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]},
    )

    assert [turn.text for turn in read] == ["no", "never"]


@pytest.mark.parametrize(
    ("message", "param", "detail"),
    [
        (5, "messages[1]", "invalid_type"),
        ({"content": "x"}, "messages[1].role", "missing_required_parameter"),
        ({"role": "robot", "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": 1, "content": "x"}, "messages[1].role", "invalid_type"),
        ({"role": "user"}, "messages[1].content", "missing_required_parameter"),
        ({"role": "user", "content": None}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": 1}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": []}, "messages[1].content", "empty_array"),
        ({"role": "user", "content": [1]}, "messages[1].content[0]", "invalid_type"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[1].content[0].type", "missing_required_parameter"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[1].content[0].text", "invalid_type"),
        ({"role": "user", "content": [{"type": "dance"}]}, "messages[1].content[0].type", "invalid_value"),
        ({"role": "assistant"}, "messages[1].content", "missing_required_parameter"),
        ({"role": "assistant", "content": None}, "messages[1].content", "invalid_type"),
        ({"role": "assistant", "tool_calls": []}, "messages[1].content", "missing_required_parameter"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].id", "missing_required_parameter"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]},
            "messages[1].tool_calls[0].type",
            "unsupported_value",
        ),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id", "missing_required_parameter"),
        ({"role": "function", "content": "x"}, "messages[1].name", "missing_required_parameter"),
    ],
)
def test_a_bad_message_is_named_by_its_place(parse, message, param, detail):
    with pytest.raises(RequestError) as caught:
        parse(messages=[{"role": "user", "content": "Hi"}, message])

    assert (caught.value.failure.param, caught.value.failure.detail) == (param, detail)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_media_is_refused_with_the_place_the_kind_and_the_model(parse, kind):
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]

    with pytest.raises(RequestError) as caught:
        parse(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": parts}])

    failure = caught.value.failure
    assert (failure.code, failure.detail, failure.param) == (
        "unsupported",
        "unsupported_value",
        "messages[1].content[1]",
    )
    assert kind in failure.message


@pytest.mark.parametrize(
    ("messages", "detail"),
    [
        (..., "missing_required_parameter"),
        ([], "empty_array"),
        ("Hi", "invalid_type"),
        ([{"role": "user", "content": "x"}] * 2049, "array_above_max_length"),
    ],
)
def test_messages_as_a_whole(parse, messages, detail):
    with pytest.raises(RequestError) as caught:
        parse(messages=messages)

    assert (caught.value.failure.param, caught.value.failure.detail) == ("messages", detail)
