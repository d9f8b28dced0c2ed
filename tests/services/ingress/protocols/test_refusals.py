"""What a body may not say, as one table per kind: the field at fault and the code stand in the error."""

import pytest

from headrace.ingress.protocols import Terms
from headrace.shared.errors import RequestError

BOTH = ("chat", "completion")
WRONG_TYPES = {
    "temperature": ["1", True, [1]],
    "top_p": ["0.5", False],
    "top_k": ["1", 1.5, True],
    "min_p": ["0"],
    "presence_penalty": ["0"],
    "frequency_penalty": [{}],
    "repetition_penalty": ["1"],
    "max_tokens": ["16", True, 1.5, [16]],
    "seed": ["7", 0.5, True],
    "n": ["1", True, 1.5],
    "stop": [1, {"a": 1}],
    "stop_token_ids": ["1", 1],
    "include_stop_str_in_output": [1, "true"],
    "skip_special_tokens": [0],
    "ignore_eos": ["yes", 1],
    "logit_bias": [[], "x", 3],
    "stream": [1, "true"],
    "metadata": ["x", ["a"]],
    "cache_salt": [1],
    "session_id": [1],
    "prompt_cache_key": [{}],
    "request_id": [5],
    "return_token_ids": [1],
    "service_tier": [1],
    "model": [1, ["m"], {}],
    "add_special_tokens": [1],
    "x_script": ["x"],
}
OUT_OF_RANGE = [
    ("temperature", -0.1, "decimal_below_min_value"),
    ("temperature", 2.5, "decimal_above_max_value"),
    ("top_p", 1.5, "decimal_above_max_value"),
    ("top_p", -1, "decimal_below_min_value"),
    ("top_k", -2, "integer_below_min_value"),
    ("min_p", 1.01, "decimal_above_max_value"),
    ("presence_penalty", 3, "decimal_above_max_value"),
    ("frequency_penalty", -3, "decimal_below_min_value"),
    ("repetition_penalty", 0, "decimal_below_min_value"),
    ("seed", 100000000000000000000, "integer_above_max_value"),
    ("seed", -(2**63) - 1, "integer_below_min_value"),
    ("seed", 1e30, "integer_above_max_value"),
    ("n", 0, "integer_below_min_value"),
    ("n", 10000, "integer_above_max_value"),
    ("n", 3000000, "integer_above_max_value"),
    ("stop", ["a", "b", "c", "d", "e"], "array_above_max_length"),
    ("stop", "", "invalid_value"),
    ("cache_salt", "", "string_below_min_length"),
    ("cache_salt", "x" * 1025, "string_above_max_length"),
    ("request_id", "../x", "invalid_value"),
    ("request_id", "a" * 65, "invalid_value"),
    ("service_tier", "gold", "invalid_value"),
    ("metadata", {str(i): "v" for i in range(17)}, "object_above_max_properties"),
    ("metadata", {"k" * 65: "v"}, "invalid_value"),
    ("metadata", {"k": "v" * 513}, "invalid_value"),
    ("metadata", {"k": 1}, "invalid_type"),
    ("logit_bias", {"abc": 1}, "invalid_value"),
    ("logit_bias", {"-1": 1}, "invalid_value"),
    ("logit_bias", {"١": 1}, "invalid_value"),
    ("logit_bias", {"99999999999": 1}, "invalid_value"),
    ("logit_bias", {"1": 101}, "decimal_above_max_value"),
    ("logit_bias", {"1": "5"}, "invalid_type"),
    ("logit_bias", {str(i): 1 for i in range(301)}, "object_above_max_properties"),
    ("model", "", "missing_required_parameter"),
    ("model", None, "missing_required_parameter"),
    ("model", ..., "missing_required_parameter"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("stream_options", {}, "invalid_value"),
]
UNSUPPORTED = [
    ("n", 2, "unsupported_value"),
    ("best_of", 3, "unsupported_value"),
    ("tools", [{"type": "function", "function": {"name": "f"}}], "unsupported_parameter"),
    ("tool_choice", "required", "unsupported_value"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, "unsupported_value"),
    ("functions", [{"name": "f"}], "unsupported_parameter"),
    ("function_call", {"name": "f"}, "unsupported_value"),
    ("response_format", {"type": "json_object"}, "unsupported_value"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "unsupported_value"),
    ("response_format", {}, "unsupported_value"),
    ("structured_outputs", {"json": ""}, "unsupported_parameter"),
    ("guided_json", {}, "unsupported_parameter"),
    ("guided_regex", "a", "unsupported_parameter"),
    ("guided_choice", ["a"], "unsupported_parameter"),
    ("guided_grammar", "x", "unsupported_parameter"),
    ("prompt_logprobs", 0, "unsupported_parameter"),
    ("echo", True, "unsupported_parameter"),
    ("suffix", "x", "unsupported_parameter"),
    ("min_tokens", 4, "unsupported_parameter"),
    ("bad_words", ["x"], "unsupported_parameter"),
    ("allowed_token_ids", [1], "unsupported_parameter"),
    ("documents", [{"title": "a", "text": "b"}], "unsupported_parameter"),
    ("chat_template", "{{ 7 * 7 }}", "unsupported_parameter"),
    ("thinking", {"type": "enabled"}, "unsupported_parameter"),
    ("thinking_token_budget", 16, "unsupported_parameter"),
    ("include_reasoning", False, "unsupported_value"),
    ("modalities", ["text", "audio"], "unsupported_value"),
    ("audio", {"voice": "x"}, "unsupported_parameter"),
    ("web_search_options", {}, "unsupported_parameter"),
    ("prompt_embeds", "x", "unsupported_parameter"),
    ("use_beam_search", True, "unsupported_parameter"),
    ("length_penalty", 0.5, "unsupported_value"),
    ("truncate_prompt_tokens", 10, "unsupported_parameter"),
    ("x_script", {"choices": []}, "unsupported_parameter"),
]


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values]
)
def test_a_wrong_type_is_refused_by_name(parse, protocol, field, value):
    with pytest.raises(RequestError) as caught:
        parse(protocol, **{field: value})

    failure = caught.value.failure
    assert (failure.code, failure.detail, failure.param) == ("invalid_request", "invalid_type", field)
    assert failure.message.startswith(f"{field} must be ")


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize(("field", "value", "detail"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(parse, protocol, field, value, detail):
    with pytest.raises(RequestError) as caught:
        parse(protocol, **{field: value})

    failure = caught.value.failure
    assert (failure.code, failure.detail, failure.param) == ("invalid_request", detail, field)


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize(("field", "value", "detail"), UNSUPPORTED)
def test_a_feature_that_is_not_there_is_refused_and_never_ignored(parse, protocol, field, value, detail):
    with pytest.raises(RequestError) as caught:
        parse(protocol, **{field: value})

    failure = caught.value.failure
    assert (failure.code, failure.detail, failure.param) == ("unsupported", detail, field)


@pytest.mark.parametrize(
    ("protocol", "field", "value", "detail"),
    [
        ("chat", "max_tokens", 0, "integer_below_min_value"),
        ("chat", "max_tokens", -2, "integer_below_min_value"),
        ("chat", "max_completion_tokens", 0, "integer_below_min_value"),
        ("chat", "max_completion_tokens", "5", "invalid_type"),
        ("completion", "max_tokens", -2, "integer_below_min_value"),
        ("chat", "logprobs", True, "unsupported_parameter"),
        ("chat", "logprobs", 1, "invalid_type"),
        ("chat", "top_logprobs", 2, "unsupported_parameter"),
        ("chat", "top_logprobs", 21, "integer_above_max_value"),
        ("chat", "top_logprobs", 700000000, "integer_above_max_value"),
        ("completion", "logprobs", 0, "unsupported_parameter"),
        ("completion", "logprobs", 6, "integer_above_max_value"),
        ("completion", "logprobs", True, "invalid_type"),
        ("chat", "reasoning_effort", "huge", "invalid_value"),
        ("chat", "verbosity", "loud", "invalid_value"),
        ("chat", "add_special_tokens", True, "unsupported_value"),
        ("chat", "chat_template_kwargs", [], "invalid_type"),
        ("chat", "chat_template_kwargs", {"a": 2**70}, "invalid_value"),
        ("completion", "prompt", 1, "invalid_type"),
        ("completion", "prompt", {}, "invalid_type"),
        ("completion", "prompt", ..., "missing_required_parameter"),
        ("completion", "prompt", [], "empty_array"),
        ("completion", "prompt", [[]], "empty_array"),
        ("completion", "prompt", ["a", "b"], "unsupported_value"),
        ("completion", "prompt", [[1], [2]], "unsupported_value"),
    ],
)
def test_fields_of_one_dialect_are_refused_by_name(parse, protocol, field, value, detail):
    with pytest.raises(RequestError) as caught:
        parse(protocol, **{field: value})

    assert (caught.value.failure.detail, caught.value.failure.param) == (detail, field)


@pytest.mark.parametrize(
    ("ids", "param", "detail"),
    [
        ([1, -1], "prompt[1]", "integer_below_min_value"),
        ([4_294_967_296], "prompt[0]", "integer_above_max_value"),
        ([1, True], "prompt[1]", "invalid_type"),
        ([1, "a"], "prompt[1]", "invalid_type"),
        ([1, None], "prompt[1]", "invalid_type"),
    ],
)
def test_a_bad_prompt_id_is_named_by_its_place(parse, ids, param, detail):
    with pytest.raises(RequestError) as caught:
        parse("completion", prompt=ids)

    assert (caught.value.failure.param, caught.value.failure.detail) == (param, detail)


def test_one_bad_stop_is_named_by_its_place(parse):
    with pytest.raises(RequestError) as empty:
        parse(stop=["a", ""])
    with pytest.raises(RequestError) as wrong:
        parse(stop=["a", 1])
    with pytest.raises(RequestError) as long:
        parse(stop=["x" * 65])

    assert (empty.value.failure.param, empty.value.failure.detail) == ("stop[1]", "invalid_value")
    assert (wrong.value.failure.param, wrong.value.failure.detail) == ("stop[1]", "invalid_type")
    assert long.value.failure.detail == "string_above_max_length"


def test_free_form_json_that_could_not_travel_is_refused(parse):
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"a": deep}

    with pytest.raises(RequestError) as caught:
        parse(chat_template_kwargs=deep)

    assert caught.value.failure.param == "chat_template_kwargs"


def test_both_template_switches_at_once_are_refused(parse):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The"}]

    with pytest.raises(RequestError) as both:
        parse(messages=messages, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(RequestError) as user_last:
        parse(continue_final_message=True)

    assert both.value.failure.param == "continue_final_message"
    assert user_last.value.failure.param == "messages"


def test_more_output_than_the_server_allows_is_refused(parse):
    with pytest.raises(RequestError) as caught:
        parse(max_tokens=101, terms=Terms(seed=1, max_output_tokens=100))

    assert (caught.value.failure.param, caught.value.failure.detail) == ("max_tokens", "integer_above_max_value")
