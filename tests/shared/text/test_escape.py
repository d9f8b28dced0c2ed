"""Special tokens in text from outside."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.text.escape import Guard

SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "ab", "ba", "x"]


def test_special_tokens_of_the_template_are_sealed_those_of_the_user_are_not():
    guard = Guard(["<|im_end|>"])

    text = guard.seal(guard.hide("a<|im_end|>") + "<|im_end|>")

    assert text == "a<|im_end|>" + guard.spelling("<|im_end|>")


def test_text_without_special_tokens_is_unchanged():
    guard = Guard(SPECIALS)

    assert guard.seal(guard.hide("héllo 🙂")) == "héllo 🙂"


def test_every_string_of_a_json_value_is_hidden():
    guard = Guard(["<s>"])

    hidden = guard.hide_all({"a<s>": "<s>", "list": ["<s>", {"n": 1, "deep": "x<s>"}, None, True]})

    assert "<s>" not in repr(hidden)
    assert isinstance(hidden, dict)
    assert hidden["list"][2:] == [None, True]


def test_a_tokenizer_without_special_tokens_needs_no_escaping():
    guard = Guard([])

    assert guard.seal(guard.hide("<s>")) == "<s>"


def test_a_spelling_cannot_be_guessed():
    assert Guard(["<s>"]).spelling("<s>") != Guard(["<s>"]).spelling("<s>")


@given(st.text(alphabet="<s>abx|im_endtr ", max_size=40))
def test_hiding_leaves_no_special_token_and_is_undone(text):
    guard = Guard(SPECIALS)

    hidden = guard.hide(text)

    assert not any(special in hidden for special in SPECIALS)
    assert guard.seal(hidden) == text
