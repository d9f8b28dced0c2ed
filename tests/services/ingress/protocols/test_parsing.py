"""What a good body becomes."""

import pytest

from headrace.ingress.protocols import Terms
from headrace.shared.errors import RequestError
from headrace.shared.messages import Conversation, Sampling, ScriptStep, Text, Tokens
from headrace.shared.packing import unpack_ids

# fmt: off
CHAT_FIELDS = [
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "seed", "response_format", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "reasoning_effort", "verbosity", "prediction", "user",
    "safety_identifier", "prompt_cache_key", "service_tier", "metadata", "store", "modalities", "audio",
    "web_search_options", "stream", "stream_options", "top_k", "min_p", "repetition_penalty", "min_tokens",
    "ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "bad_words",
    "allowed_token_ids", "echo", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs", "documents", "thinking", "include_reasoning", "structured_outputs",
    "guided_json", "return_token_ids", "cache_salt", "priority", "request_id", "session_id", "best_of", "suffix",
    "x_script",
]
# fmt: on


@pytest.mark.parametrize("protocol", ["chat", "completion"])
def test_null_is_the_same_as_absent_for_every_field(parse, protocol):
    assert parse(protocol, **dict.fromkeys(CHAT_FIELDS)) == parse(protocol)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("functions", []),
        ("response_format", {"type": "text"}),
        ("n", 1),
        ("n", 1.0),
        ("best_of", 1),
        ("echo", False),
        ("min_tokens", 0),
        ("bad_words", []),
        ("documents", []),
        ("modalities", ["text"]),
        ("include_reasoning", True),
        ("use_beam_search", False),
        ("length_penalty", 1.0),
        ("stop", []),
        ("parallel_tool_calls", False),
        ("service_tier", "flex"),
        ("metadata", {"a": "b"}),
        ("max_tokens", -1),
        ("logit_bias", {}),
        ("stream", False),
    ],
)
def test_values_that_ask_for_nothing_change_nothing(parse, field, value):
    assert parse(**{field: value}) == parse()


def test_sampling_is_taken_over(parse):
    parsed = parse(
        temperature=0.5,
        top_p=0.9,
        top_k=40.0,
        min_p=0.05,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "007": 1.5},
        seed=-7,
        stop="END",
        include_stop_str_in_output=True,
        stop_token_ids=[2, 3.0],
        ignore_eos=True,
        skip_special_tokens=False,
    )

    assert parsed.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence=1.0,
        frequency=-1.0,
        repetition=1.1,
        logit_bias={5: -100.0, 7: 1.5},
        seed=-7,
        stop=("END",),
        include_stop=True,
        stop_ids=(2, 3),
        ignore_eos=True,
        skip_special=False,
    )
    assert parsed.ignored == ()


def test_what_a_body_does_not_say_is_left_to_the_model(parse):
    sampling = parse().sampling

    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (None, None, None, None)
    assert sampling.seed == 42


@pytest.mark.parametrize(
    ("field", "value", "read"), [("top_p", 0, 1e-6), ("top_k", -1, 0), ("seed", 2**63 - 1, 2**63 - 1)]
)
def test_edge_values_of_sampling(parse, field, value, read):
    assert getattr(parse(**{field: value}).sampling, field) == read


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 16.0}, 16),
        ({"max_completion_tokens": 5, "max_tokens": 3}, 5),
        ({"max_tokens": -1}, None),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
    ],
)
def test_the_newer_limit_wins(parse, fields, limit):
    assert parse(**fields).max_new == limit


def test_a_server_limit_is_the_default_limit(parse):
    assert parse(terms=Terms(seed=1, max_output_tokens=50)).max_new == 50


@pytest.mark.parametrize(("limit", "max_new"), [(..., 16), (None, 16), (0, 0), (7, 7), (-1, 16)])
def test_completions_default_to_sixteen_tokens(parse, limit, max_new):
    assert parse("completion", max_tokens=limit).max_new == max_new


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Hi", Text(text="Hi")),
        (["Hi"], Text(text="Hi")),
        ("", Text(text="")),
        ([""], Text(text="")),
        (None, Text(text="")),
    ],
)
def test_a_text_prompt_in_every_form(parse, prompt, read):
    assert parse("completion", prompt=prompt).prompt == read


@pytest.mark.parametrize("prompt", [[1, 2, 4_294_967_295], [[1, 2, 4_294_967_295]], [1.0, 2, 4_294_967_295]])
def test_a_prompt_of_ids_in_every_form(parse, prompt):
    read = parse("completion", prompt=prompt).prompt

    assert isinstance(read, Tokens)
    assert unpack_ids(read.ids) == [1, 2, 4_294_967_295]


def test_special_tokens_of_a_text_prompt_can_be_left_out(parse):
    assert parse("completion", add_special_tokens=False).prompt == Text(text="Hi", add_special=False)


def test_template_variables_hints_first_the_callers_own_over_them(parse):
    parsed = parse(
        reasoning_effort="none",
        verbosity="low",
        chat_template_kwargs={"enable_thinking": True, "x": {"y": [1]}, "messages": [], "tools": []},
    )

    assert isinstance(parsed.prompt, Conversation)
    assert parsed.prompt.template.kwargs == {
        "reasoning_effort": "none",
        "enable_thinking": True,
        "verbosity": "low",
        "x": {"y": [1]},
    }
    assert parsed.ignored == ("chat_template_kwargs.messages", "chat_template_kwargs.tools")


def test_the_last_assistant_message_can_be_continued(parse):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The capital of"}]

    implied = parse(messages=messages, continue_final_message=True)

    assert implied == parse(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert implied.prompt.template.continue_final
    assert not implied.prompt.template.add_generation_prompt


def test_unknown_and_effectless_fields_are_reported(parse):
    parsed = parse(
        stream=True,
        zzz=1,
        user="u",
        store=True,
        typical_p=0.5,
        zero=None,
        stream_options={"include_obfuscation": False, "include_usage": True},
        messages=[{"role": "user", "content": "a", "weight": 1}],
    )

    assert parsed.ignored == (
        "zzz",
        "user",
        "store",
        "typical_p",
        "stream_options.include_obfuscation",
        "messages.weight",
    )


def test_affinity_is_the_session_or_else_the_cache_key(parse):
    assert parse(session_id="s", prompt_cache_key="k").session == "s"
    assert parse(prompt_cache_key="k").session == "k"
    assert parse(cache_salt="a").cache_salt == "a"


def test_a_script_is_read(parse):
    steps = [
        {"text": "Hi"},
        {"ids": [1, 2]},
        {"pause_ms": 5},
        {"random": 3},
        {"fault": "raise", "attempts": 2},
        {"eos": True},
    ]

    script = parse(model="scripted", x_script={"choices": [steps], "repeat": True}).script

    assert script.choices == (
        (
            ScriptStep(text="Hi"),
            ScriptStep(ids=(1, 2)),
            ScriptStep(pause_ms=5),
            ScriptStep(random=3),
            ScriptStep(fault="raise", attempts=2),
            ScriptStep(eos=True),
        ),
    )
    assert (script.repeat, script.show_prompt) == (True, False)


@pytest.mark.parametrize(
    ("script", "param"),
    [
        ({"choices": [[{}]]}, "x_script.choices[0][0]"),
        ({"choices": [[{"text": "a", "eos": True}]]}, "x_script.choices[0][0]"),
        ({"choices": [[{"text": 1}]]}, "x_script.choices[0][0].text"),
        ({"choices": [[{"logprobs": {}}]]}, "x_script.choices[0][0]"),
        ({"choices": [[{"text": "a", "speed": 1}]]}, "x_script.choices[0][0].speed"),
        ({"choices": [[{"fault": "melt"}]]}, "x_script.choices[0][0].fault"),
        ({"choices": ["a"]}, "x_script.choices[0]"),
        ({"choices": [[], []]}, "x_script.choices"),
        ({"loop": True}, "x_script.loop"),
    ],
)
def test_a_bad_script_is_refused_by_place(parse, script, param):
    with pytest.raises(RequestError) as caught:
        parse(model="scripted", x_script=script)

    assert caught.value.failure.param == param
