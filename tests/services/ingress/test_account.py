import asyncio

import pytest
import structlog
from prometheus_client import REGISTRY

from headrace.ingress.account import Account
from headrace.ingress.dialect import HttpError
from headrace.shared.errors import Code, RequestError


def count(outcome):
    labels = {"stage": "ingress", "class": "int", "outcome": outcome}
    return REGISTRY.get_sample_value("headrace_requests_total", labels) or 0


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (RequestError(Code.INVALID_REQUEST, "no", detail="invalid_type"), "refused", "invalid_type"),
        (RequestError(Code.OVERLOADED, "no"), "refused", "overloaded"),
        (RequestError(Code.QUEUE_TIMEOUT, "no"), "timeout", "queue_timeout"),
        (RequestError(Code.WORKER_CRASHED, "no"), "failed", "worker_crashed"),
        (HttpError(415, "no"), "refused", "415"),
        (asyncio.CancelledError(), "cancelled", "499"),
    ],
)
def test_every_end_is_one_log_line_and_one_count(error, outcome, reason):
    before = count(outcome)

    with structlog.testing.capture_logs() as lines, pytest.raises(type(error)), Account("r", {"retry": "1"}):
        raise error

    assert [(line["request"], line["outcome"], line["reason"], line["retry"]) for line in lines] == [
        ("r", outcome, reason, "1")
    ]
    assert count(outcome) == before + 1
