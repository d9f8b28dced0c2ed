"""Parsing a body without any server around it."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.ingress.protocols import PROTOCOLS, Parsed, Terms
from headrace.ingress.protocols.fields import Fields

ADAPTERS = {adapter.protocol: adapter for adapter in PROTOCOLS}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "completion": {"model": "m", "prompt": "Hi"},
}


@pytest.fixture
def parse() -> Callable[..., Parsed]:
    """`parse("chat", temperature=1)`: a good body of that dialect with fields over it; `...` removes a field."""

    def run(protocol: str = "chat", *, terms: Terms | None = None, **fields: Any) -> Parsed:
        body = {name: value for name, value in (BODIES[protocol] | fields).items() if value is not ...}
        return ADAPTERS[protocol].parse(Fields(body), terms or Terms(seed=42))

    return run
