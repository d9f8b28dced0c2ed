"""Errors as the caller's dialect wants them: one table from reason to status, type, code and retry advice.

Knows both official error shapes; knows nothing of requests or of how a failure came about.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import random
from typing import Literal

import msgspec

from headrace.shared.errors import Code, Failure, HeadraceError, RequestError

Dialect = Literal["openai", "anthropic"]
Retry = Literal["later", "never", "client decides"]

INVALID = "invalid_request_error"
_SERVER = "server_error"
_ECHO_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """An error answer before it is written in a dialect."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(HeadraceError):
    """A call that never became a request: wrong URL, method, content type, a body that is no JSON."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        kind = INVALID if status < 500 else _SERVER
        self.problem = Problem(status, kind, message, code, headers=headers or {})


@dataclass(frozen=True, slots=True)
class _Rule:
    status: int
    type: str
    code: str | None
    retry: Retry = "client decides"
    message: str | None = None
    """Replaces a message that may hold internals."""


_RULES: dict[Code, _Rule] = {
    Code.INVALID_REQUEST: _Rule(400, INVALID, None),
    Code.INVALID_PROMPT: _Rule(400, INVALID, "invalid_prompt"),
    Code.CONTEXT_LENGTH: _Rule(400, INVALID, "context_length_exceeded"),
    Code.MODEL_NOT_FOUND: _Rule(404, INVALID, "model_not_found"),
    Code.UNSUPPORTED: _Rule(400, INVALID, "unsupported_parameter"),
    Code.BODY_TOO_LARGE: _Rule(413, INVALID, None),
    Code.OVERLOADED: _Rule(503, _SERVER, "overloaded", "later"),
    Code.QUEUE_TIMEOUT: _Rule(503, _SERVER, "overloaded", "later"),
    Code.FIRST_TOKEN_TIMEOUT: _Rule(503, _SERVER, "overloaded", "later"),
    Code.TIMEOUT: _Rule(504, _SERVER, "timeout", "never"),
    Code.CANCELLED: _Rule(499, INVALID, "cancelled", "never"),
    Code.WORKER_CRASHED: _Rule(
        500, _SERVER, "internal_error", "never", "the request failed: every worker that ran it stopped"
    ),
    Code.INTERNAL: _Rule(500, _SERVER, "internal_error", message="the server failed to process the request"),
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_STATUS = {503: 529}


def describe(failure: Failure) -> Problem:
    """Look a failure up."""
    rule = _RULES[failure.code]
    return Problem(
        status=rule.status,
        type=rule.type,
        message=rule.message or failure.message,
        code=failure.detail or rule.code,
        param=clip(failure.param) if failure.param else None,
        headers=_retry_headers(rule.retry),
    )


def describe_error(error: RequestError | HttpError) -> Problem:
    """The problem an exception stands for."""
    return error.problem if isinstance(error, HttpError) else describe(error.failure)


def retry_after(base_s: float = 1.0) -> dict[str, str]:
    """Retry advice with jitter, so that refused clients do not come back together: 1 to 60 whole seconds."""
    wait_s = min(60.0, max(0.2, base_s * (0.5 + random())))  # noqa: S311  # jitter is no secret
    return {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(int(wait_s * 1000))}


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """Whose shape an error on this path has: by route, on shared routes by the caller's version header."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    generation = path.removeprefix("/v1") in {"/chat/completions", "/completions", "/responses"}
    return "anthropic" if "anthropic-version" in headers and not generation else "openai"


def status_in(problem: Problem, dialect: Dialect) -> int:
    """HTTP status of a problem in a dialect."""
    return _ANTHROPIC_STATUS.get(problem.status, problem.status) if dialect == "anthropic" else problem.status


def body_in(problem: Problem, dialect: Dialect, request_id: str) -> bytes:
    """JSON body of a problem in a dialect."""
    if dialect == "anthropic":
        kind = _ANTHROPIC_TYPES.get(problem.status, INVALID)
        error = {"type": kind, "message": problem.message}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
    return msgspec.json.encode({"error": openai_error(problem)})


def openai_error(problem: Problem) -> dict[str, str | None]:
    """The OpenAI error object; all four keys are always there."""
    return {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}


def clip(text: str) -> str:
    """At most 200 characters of what a caller sent."""
    return text if len(text) <= _ECHO_LIMIT else text[: _ECHO_LIMIT - 1] + "…"


def _retry_headers(retry: Retry) -> dict[str, str]:
    if retry == "later":
        return retry_after(2.0)
    return {"x-should-retry": "false"} if retry == "never" else {}
