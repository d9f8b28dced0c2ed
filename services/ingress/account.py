"""What one request came to: one log line and one count, whatever way it ends."""

import time
from collections.abc import Mapping

import structlog

from headrace.ingress.dialect import HttpError
from headrace.shared.errors import Code, RequestError
from headrace.shared.packing import num_packed
from headrace.shared.records import TokRecord
from headrace.shared.telemetry import metrics

CLIENT_GONE = 499

_OUTCOMES = {
    Code.QUEUE_TIMEOUT: "timeout",
    Code.FIRST_TOKEN_TIMEOUT: "timeout",
    Code.TIMEOUT: "timeout",
    Code.CANCELLED: "cancelled",
    Code.WORKER_CRASHED: "failed",
    Code.INTERNAL: "failed",
}

log = structlog.get_logger()


class Account:
    """Use as a context manager around one generation call."""

    def __init__(self, rid: str, caller: Mapping[str, str]) -> None:
        """`caller`: what the client says of itself, for the log."""
        self.rid = rid
        self._caller = caller
        self._started_at = time.monotonic()
        self._accepted_at: float | None = None
        self._ttft_s: float | None = None
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._outcome = "failed"
        self._reason = ""

    def __enter__(self) -> "Account":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError | HttpError):
            self.fail(error)
        elif error is not None:
            self.lose()
        metrics.count_request("ingress", "int", self._outcome)
        log.info(
            "request_answered",
            request=self.rid,
            outcome=self._outcome,
            reason=self._reason,
            **self._caller,
            prompt_tokens=self._num_prompt_tokens,
            num_tokens=self._num_tokens,
            ttft_ms=None if self._ttft_s is None else round(self._ttft_s * 1000, 1),
            total_ms=round((time.monotonic() - self._started_at) * 1000, 1),
        )

    def accept(self) -> None:
        """The request is durable."""
        self._accepted_at = time.monotonic()

    def add(self, record: TokRecord) -> None:
        """Count one append."""
        if self._ttft_s is None and self._accepted_at is not None:
            self._ttft_s = time.monotonic() - self._accepted_at
            metrics.TTFT_SECONDS.observe(self._ttft_s)
        if record.prompt is not None:
            self._num_prompt_tokens = record.prompt.prompt_tokens
        for chunk in record.choices:
            self._num_tokens += num_packed(chunk.t)

    def succeed(self) -> None:
        """The whole answer went out."""
        self._outcome, self._reason = "ok", ""

    def fail(self, error: RequestError | HttpError) -> None:
        """The request ended in an error answer."""
        if isinstance(error, HttpError):
            self._outcome, self._reason = "refused", str(error.problem.status)
            return
        self._outcome = _OUTCOMES.get(error.failure.code, "refused")
        self._reason = error.failure.detail or error.failure.code

    def lose(self) -> None:
        """The client left before the end."""
        self._outcome, self._reason = "cancelled", str(CLIENT_GONE)
