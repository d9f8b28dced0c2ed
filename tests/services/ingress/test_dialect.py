import msgspec
import pytest

from headrace.ingress import dialect
from headrace.shared.errors import Code, Failure


def problem_of(code, message="why", **fields):
    return dialect.describe(Failure(code=code, message=message, **fields))


@pytest.mark.parametrize(
    ("code", "status", "kind", "wire_code"),
    [
        (Code.INVALID_REQUEST, 400, "invalid_request_error", None),
        (Code.INVALID_PROMPT, 400, "invalid_request_error", "invalid_prompt"),
        (Code.CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded"),
        (Code.MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found"),
        (Code.UNSUPPORTED, 400, "invalid_request_error", "unsupported_parameter"),
        (Code.BODY_TOO_LARGE, 413, "invalid_request_error", None),
        (Code.OVERLOADED, 503, "server_error", "overloaded"),
        (Code.QUEUE_TIMEOUT, 503, "server_error", "overloaded"),
        (Code.FIRST_TOKEN_TIMEOUT, 503, "server_error", "overloaded"),
        (Code.TIMEOUT, 504, "server_error", "timeout"),
        (Code.CANCELLED, 499, "invalid_request_error", "cancelled"),
        (Code.WORKER_CRASHED, 500, "server_error", "internal_error"),
        (Code.INTERNAL, 500, "server_error", "internal_error"),
    ],
)
def test_every_code_has_its_row(code, status, kind, wire_code):
    problem = problem_of(code)

    assert (problem.status, problem.type, problem.code) == (status, kind, wire_code)


def test_the_table_is_complete():
    assert all(problem_of(code).status >= 400 for code in Code)


def test_refusals_that_waiting_cures_say_how_long():
    for _ in range(50):
        headers = problem_of(Code.OVERLOADED).headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert 0 < int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1000
        assert "x-should-retry" not in headers


def test_waits_differ_between_clients():
    assert len({problem_of(Code.OVERLOADED).headers["retry-after-ms"] for _ in range(20)}) > 1


@pytest.mark.parametrize("code", [Code.TIMEOUT, Code.WORKER_CRASHED, Code.CANCELLED])
def test_what_repeating_does_not_cure_says_so(code):
    assert problem_of(code).headers == {"x-should-retry": "false"}


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.WORKER_CRASHED])
def test_internals_never_reach_the_caller(code):
    assert "hunter2" not in problem_of(code, "Traceback: password=hunter2").message


def test_the_openai_body_has_all_four_keys():
    body = dialect.body_in(problem_of(Code.INVALID_REQUEST, param="n", detail="invalid_type"), "openai", "req_1")

    assert msgspec.json.decode(body) == {
        "error": {"message": "why", "type": "invalid_request_error", "param": "n", "code": "invalid_type"}
    }


def test_the_anthropic_body_and_its_own_status_for_overload():
    problem = problem_of(Code.OVERLOADED)

    assert dialect.status_in(problem, "anthropic") == 529
    assert dialect.status_in(problem, "openai") == 503
    assert msgspec.json.decode(dialect.body_in(problem, "anthropic", "req_1")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "why"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("path", "headers", "speech"),
    [
        ("/v1/messages", {}, "anthropic"),
        ("/v1/messages/count_tokens", {}, "anthropic"),
        ("/v1/models", {}, "openai"),
        ("/v1/models/x", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("/nowhere", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("/v1/chat/completions", {"anthropic-version": "2023-06-01"}, "openai"),
        ("/completions", {"anthropic-version": "2023-06-01"}, "openai"),
    ],
)
def test_the_route_decides_then_the_version_header(path, headers, speech):
    assert dialect.dialect_of(path, headers) == speech


def test_long_input_is_cut_before_it_is_echoed():
    assert len(dialect.clip("x" * 100_000)) == 200
    assert len(problem_of(Code.INVALID_REQUEST, param="p" * 500).param) == 200
