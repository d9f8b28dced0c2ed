"""Role repair, apart from any template."""

import pytest

from headrace.shared.messages import ToolCall, Turn
from headrace.shared.text.roles import Capabilities, probe, repair, to_messages

CALL = ToolCall(id="call_1", name="f", arguments={"city": "Zürich"})


def turns(*pairs: str) -> list[Turn]:
    """`u:text`, `a:text`, `s:text` or `t:text` each."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Turn(role=roles[pair[0]], text=pair[2:]) for pair in pairs]


def lines(repaired: list[Turn]) -> list[str]:
    return [f"{turn.role[0]}:{turn.text}" for turn in repaired]


def test_a_template_that_can_everything_gets_the_conversation_as_it_is():
    conversation = turns("s:S", "u:A", "u:B", "t:R", "s:T")

    assert repair(conversation, Capabilities()) == conversation


def test_late_system_turns_join_the_leading_one():
    can = Capabilities(accepts_late_system=False)

    assert lines(repair(turns("s:S", "u:A", "s:T", "u:B"), can)) == ["s:S\n\nT", "u:A", "u:B"]
    assert lines(repair(turns("u:A", "s:T", "u:B"), can)) == ["s:T", "u:A", "u:B"]


def test_system_text_goes_to_the_first_user_turn_where_there_is_no_system_role():
    can = Capabilities(accepts_system=False)

    assert lines(repair(turns("s:S", "u:A", "s:T"), can)) == ["u:S\n\nT\n\nA"]
    assert lines(repair(turns("s:S", "a:B"), can)) == ["u:S", "a:B"]
    assert lines(repair(turns("s:", "u:A"), can)) == ["u:A"]


def test_neighbours_of_one_role_become_one_turn_where_roles_must_alternate():
    can = Capabilities(needs_alternation=True)

    assert lines(repair(turns("u:A", "u:B", "a:C", "a:", "a:D", "u:E"), can)) == ["u:A\n\nB", "a:C\n\nD", "u:E"]
    assert lines(repair(turns("u:A", "t:1", "t:2"), can)) == ["u:A", "t:1", "t:2"]


def test_tool_results_become_one_user_turn_where_there_is_no_tool_role():
    can = Capabilities(supports_tool_role=False)
    first, second = "<tool_response>\n1\n</tool_response>", "<tool_response>\n2\n</tool_response>"

    assert lines(repair(turns("a:x", "t:1", "t:2", "a:y"), can)) == ["a:x", f"u:{first}\n{second}", "a:y"]


def test_tool_calls_become_text_where_the_template_has_none():
    can = Capabilities(supports_tool_calls=False)
    call = '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich"}}\n</tool_call>'

    silent, talking = repair(
        [Turn(role="assistant", tool_calls=(CALL,)), Turn(role="assistant", text="Wait.", tool_calls=(CALL,))], can
    )

    assert (silent.text, talking.text) == (call, f"Wait.\n{call}")
    assert silent.tool_calls == ()


def test_messages_are_plain_values_with_a_string_as_content():
    turn = Turn(role="assistant", reasoning="hm", tool_calls=(CALL,), name="bob")

    assert to_messages([Turn(role="user", text="hi"), turn]) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "name": "bob",
            "reasoning_content": "hm",
            "reasoning": "hm",
            "thinking": "hm",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"city": "Zürich"}}}
            ],
        },
    ]


def test_arguments_that_did_not_parse_reach_the_template_as_an_empty_object():
    turn = Turn(role="assistant", tool_calls=(ToolCall(id="x", name="f", arguments="{broken"),))

    assert to_messages([turn])[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("fails_on", "expected"),
    [
        (lambda roles: False, Capabilities()),
        (lambda roles: True, Capabilities()),
        (lambda roles: "system" in roles, Capabilities(accepts_system=False, accepts_late_system=False)),
        (lambda roles: "system" in roles[1:], Capabilities(accepts_late_system=False)),
        (lambda roles: roles == ["user", "user"], Capabilities(needs_alternation=True)),
        (lambda roles: "tool" in roles, Capabilities(supports_tool_role=False)),
    ],
)
def test_capabilities_are_found_by_trying(fails_on, expected):
    def render(messages):
        return None if fails_on([message["role"] for message in messages]) else repr(messages)

    assert probe("a template with tools", render) == expected


def test_a_template_that_never_mentions_tools_does_not_know_their_roles():
    can = probe("{{ messages }}", repr)

    assert not can.supports_tool_role
    assert not can.supports_tool_calls
