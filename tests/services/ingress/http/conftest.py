"""Parsing whatever a fuzzer makes up."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.ingress.body import parse_object
from headrace.ingress.protocols import PROTOCOLS, Terms
from headrace.shared.errors import RequestError
from headrace.shared.messages import encode


@pytest.fixture
def parse_any() -> Callable[[dict[str, Any]], None]:
    """Parse a body in every dialect: refusals are fine, what passes must fit the queue."""

    def run(body: dict[str, Any]) -> None:
        for adapter in PROTOCOLS:
            with contextlib.suppress(RequestError):
                parsed = adapter.parse(parse_object(msgspec.json.encode(body)), Terms(seed=1))
                encode(parsed.sampling)
                encode(parsed.prompt)

    return run
