"""Whether a request may enter: a pure decision over the state of the front door, and the count of those inside."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.shared.errors import Code, RequestError
from headrace.shared.reports import ModelReport
from headrace.shared.telemetry import metrics


@dataclass(frozen=True, slots=True)
class Door:
    """What the decision looks at."""

    is_draining: bool
    num_active: int
    max_concurrent: int
    missing_stage: str | None
    """A stage without which nothing can be served, absent for longer than the grace period."""
    is_known: bool
    """Whether the model is configured or was ever served here."""
    report: ModelReport | None
    """The model as served now or lately."""


def admit(door: Door, model: str) -> ModelReport:
    """The model to serve, or RequestError: unknown models first, since waiting does not cure them."""
    if not door.is_known:
        raise RequestError(Code.MODEL_NOT_FOUND, f"the model {model[:200]!r} is not served here", param="model")
    if door.is_draining:
        raise RequestError(Code.OVERLOADED, "the server is shutting down")
    if door.num_active >= door.max_concurrent:
        raise RequestError(Code.OVERLOADED, f"the server holds {door.max_concurrent} requests already")
    if door.missing_stage is not None:
        raise RequestError(Code.OVERLOADED, f"no {door.missing_stage} worker is running")
    if door.report is None:
        raise RequestError(Code.OVERLOADED, "the model is not ready yet")
    return door.report


def missing_stage(is_there: Callable[[str], bool]) -> str | None:
    """The first stage that keeps requests from being served; router and prefill stand in for each other."""
    for stage in ("tokenize", "decode"):
        if not is_there(stage):
            return stage
    return None if is_there("router") or is_there("prefill") else "router"


class Gate:
    """Counts the requests inside."""

    def __init__(self) -> None:
        self.num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one place for the life of a request."""
        self.num_active += 1
        self._idle.clear()
        metrics.REQUESTS_ACTIVE.labels(stage="ingress").set(self.num_active)
        try:
            yield
        finally:
            self.num_active -= 1
            metrics.REQUESTS_ACTIVE.labels(stage="ingress").set(self.num_active)
            if not self.num_active:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until nobody is inside."""
        await self._idle.wait()
