"""The error taxonomy: every way a request can fail, with its wire code, HTTP status and whether repeating it can help.

Knows nothing of HTTP dialects: ingress turns a `RequestError` into the caller's error shape (PROTOCOL table of errors).
"""

from enum import StrEnum

import msgspec


class Code(StrEnum):
    """Stable reason of a failed request, as it travels in a terminal record."""

    INVALID_REQUEST = "invalid_request"
    INVALID_PROMPT = "invalid_prompt"
    CONTEXT_LENGTH = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    UNSUPPORTED = "unsupported"
    BODY_TOO_LARGE = "body_too_large"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105  # a token of text, not a secret
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    WORKER_CRASHED = "worker_crashed"
    INTERNAL = "internal_error"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed request as data: what a terminal record carries and what ingress renders."""

    code: Code
    message: str
    param: str | None = None
    """Dotted path of the field at fault, OpenAI style (`messages[0].content`), or None."""
    detail: str | None = None
    """Wire-level sub-code such as `integer_below_min_value`; None leaves the choice to the dialect."""


class HeadraceError(Exception):
    """Root of every error headrace raises on purpose."""


class RequestError(HeadraceError):
    """One request cannot be served; other requests are not affected."""

    def __init__(self, code: Code, message: str, *, param: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, param=param, detail=detail)


class ConfigError(HeadraceError):
    """The configuration or a pre-start check is wrong: the process exits 78 with this one line."""


class BusError(HeadraceError):
    """The queue refused or lost an operation."""


class BusUnavailableError(BusError):
    """No answer within the deadline; the outcome is unknown and must be read back."""


class QueueFullError(BusError):
    """The stream refused the message because it is full (or holds this subject already: `duplicate`)."""

    def __init__(self, message: str, *, duplicate: bool = False) -> None:
        super().__init__(message)
        self.duplicate = duplicate


class FencedError(BusError):
    """An expected-sequence condition failed: somebody else holds the lease or wrote the record."""


class MissingError(BusError):
    """The stream or consumer does not exist."""


class CacheError(HeadraceError):
    """The block store did not answer in its budget; always equivalent to a miss."""


class ModelError(HeadraceError):
    """A model file is missing, corrupt or of a kind that cannot be served."""
