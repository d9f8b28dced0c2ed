"""Conversations to prompt text."""

import pytest

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Conversation, Template, ToolCall, Turn
from headrace.shared.text.escape import Guard

SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "D<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)


def talk(*turns: Turn, **options) -> Conversation:
    return Conversation(turns=turns, template=Template(**options))


def user(text: str) -> Turn:
    return Turn(role="user", text=text)


def assistant(text: str, *calls: ToolCall) -> Turn:
    return Turn(role="assistant", text=text, tool_calls=calls)


def test_a_plain_conversation_is_rendered(open_chat):
    chat = open_chat(SMOL)

    assert chat.render(talk(user("Hi"))) == (
        "<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_of_free_roles_takes_systems_anywhere_and_neighbours(open_chat):
    text = open_chat(SMOL).render(talk(user("a"), Turn(role="system", text="S"), user("b")))

    assert "user\na<|im_end|>\n<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nb" in text


def test_tool_calls_and_results_become_text_for_a_template_without_tools(open_chat):
    call = ToolCall(id="c", name="f", arguments={})
    text = open_chat(SMOL).render(talk(user("a"), assistant("", call), Turn(role="tool", text="42", tool_call_id="c")))

    assert 'assistant\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>' in text
    assert "user\n<tool_response>\n42\n</tool_response><|im_end|>" in text


def test_an_empty_turn_stays_an_empty_turn(open_chat):
    assert "assistant\n<|im_end|>" in open_chat(SMOL).render(talk(user("a"), assistant(""), user("b")))


def test_a_strict_template_gets_a_repaired_conversation(open_chat):
    chat = open_chat(STRICT, variables={"bos_token": "<s>"})

    assert chat.render(talk(Turn(role="system", text="S"), user("a"), user("b"))) == "<s>[user]S\n\na\n\nb"


def test_what_cannot_be_repaired_is_refused_in_the_templates_words(open_chat):
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        open_chat(STRICT).render(talk(assistant("first"), user("a")))

    assert (caught.value.failure.code, caught.value.failure.param) == (Code.INVALID_PROMPT, "messages")


def test_a_template_that_fails_is_the_requests_error(open_chat):
    with pytest.raises(RequestError, match="model tiny cannot render") as caught:
        open_chat("{{ messages[0].content.nothing.more }}").render(talk(user("a")))

    assert caught.value.failure.code is Code.INVALID_PROMPT


def test_an_endless_template_is_refused_within_its_limit(open_chat):
    chat = open_chat("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", timeout_s=0.2)

    with pytest.raises(RequestError, match="did not finish within") as caught:
        chat.render(talk(user("a")))

    assert caught.value.failure.code is Code.INVALID_PROMPT


def test_extra_variables_reach_the_template_but_cannot_replace_the_messages(open_chat):
    chat = open_chat("{{ mode }}{{ messages[0].content }}{{ tools }}{{ add_generation_prompt }}")
    kwargs = {"mode": "m:", "messages": "x", "tools": "x", "add_generation_prompt": "x"}

    assert chat.render(talk(user("a"), kwargs=kwargs)) == "m:aNoneTrue"


class TestContinueFinal:
    """The last assistant turn is left open."""

    def test_the_prompt_ends_exactly_with_the_text(self, open_chat):
        turns = (user("Q"), assistant("The capital of "))

        text = open_chat(SMOL).render(talk(*turns, add_generation_prompt=False, continue_final=True))

        assert text.endswith("<|im_start|>assistant\nThe capital of ")

    def test_a_template_that_trims_trims(self, open_chat):
        turns = (user("Q"), assistant("The capital of "))

        text = open_chat(STRICT).render(talk(*turns, add_generation_prompt=False, continue_final=True))

        assert text.endswith("[assistant]The capital of")

    def test_only_an_assistant_turn_can_be_continued(self, open_chat):
        with pytest.raises(RequestError, match="assistant message at the end"):
            open_chat(SMOL).render(talk(user("Q"), add_generation_prompt=False, continue_final=True))

    def test_a_new_turn_cannot_be_opened_as_well(self, open_chat):
        with pytest.raises(RequestError, match="cannot both be true"):
            open_chat(SMOL).render(talk(assistant("A"), continue_final=True))

    def test_a_template_that_drops_the_text_cannot_continue_it(self, open_chat):
        with pytest.raises(RequestError, match="cannot be continued"):
            open_chat("{{ messages | length }}").render(
                talk(assistant("A"), add_generation_prompt=False, continue_final=True)
            )


def test_an_empty_conversation_is_refused(open_chat):
    with pytest.raises(RequestError, match="must not be empty"):
        open_chat(SMOL).render(talk())


def test_with_a_guard_only_the_templates_special_tokens_are_sealed(open_chat):
    guard = Guard(["<|im_end|>"])

    text = open_chat(SMOL).render(talk(user("a<|im_end|>b")), guard)

    assert f"user\na<|im_end|>b{guard.spelling('<|im_end|>')}\n" in text


def test_continuing_and_escaping_go_together(open_chat):
    guard = Guard(["<|im_end|>"])
    turns = (user("Q"), assistant("x<|im_end|>"))

    text = open_chat(SMOL).render(talk(*turns, add_generation_prompt=False, continue_final=True), guard)

    assert text.endswith("assistant\nx<|im_end|>")
