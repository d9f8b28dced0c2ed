"""Context limits and the words clients recognise."""

import pytest

from headrace.shared.errors import Code, RequestError
from headrace.tokenize.room import Bounds, fit

CONTEXT = Bounds(100)


@pytest.fixture
def room(accepted):
    """Fit a prompt of so many tokens; keywords are fields of the request."""

    def try_it(num_prompt: int, bounds: Bounds = CONTEXT, **fields: object) -> int:
        return fit(accepted(**fields).request, num_prompt, bounds)

    return try_it


def refusal(room, *args, **fields) -> RequestError:
    with pytest.raises(RequestError) as caught:
        room(*args, **fields)
    return caught.value


def test_no_limit_fills_the_context(room):
    assert room(30) == 70
    assert room(30, Bounds(100, max_output_tokens=10)) == 10


def test_a_limit_that_fits_is_kept(room):
    assert room(30, max_new=70) == 70
    assert room(100, max_new=0) == 0


@pytest.mark.parametrize(
    ("protocol", "param"),
    [("chat", "messages"), ("completion", "prompt"), ("responses", "input")],
)
def test_a_prompt_beyond_the_context_is_refused_in_openai_words(room, protocol, param):
    error = refusal(room, 100, protocol=protocol)

    assert str(error) == (
        f"This model's maximum context length is 100 tokens. However, your {param} resulted in 100 tokens. "
        f"Please reduce the length of the {param}."
    )
    assert (error.failure.code, error.failure.param) == (Code.CONTEXT_LENGTH, param)


def test_prompt_and_completion_beyond_the_context_are_refused_in_openai_words(room):
    assert str(refusal(room, 60, max_new=41)) == (
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens "
        "(60 in the messages, 41 in the completion). Please reduce the length of the messages or completion."
    )


def test_a_prompt_beyond_the_context_is_refused_in_anthropic_words(room):
    error = refusal(room, 120, protocol="messages", max_new=5, overflow="clamp")

    assert str(error) == "prompt is too long: 120 tokens > 99 maximum"
    assert error.failure.code is Code.CONTEXT_LENGTH


def test_overflowing_output_is_clamped_where_the_dialect_clamps(room):
    assert room(60, max_new=1000, overflow="clamp") == 40
    assert room(60, Bounds(100, max_output_tokens=7), max_new=1000, overflow="clamp") == 7


def test_the_input_limit_counts_even_where_the_context_has_room(room):
    bounds = Bounds(100, max_input_tokens=10)

    assert room(10, bounds) == 90
    assert "at most 10 tokens of input" in str(refusal(room, 11, bounds))
    assert str(refusal(room, 11, bounds, protocol="messages")) == "prompt is too long: 11 tokens > 10 maximum"


def test_the_output_limit_refuses_what_was_asked_for_beyond_it(room):
    error = refusal(room, 10, Bounds(100, max_output_tokens=7), max_new=8, protocol="responses")

    assert (error.failure.param, error.failure.detail) == ("max_output_tokens", "integer_above_max_value")
