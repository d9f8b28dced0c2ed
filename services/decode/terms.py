"""What a run agrees on with the worker around it: what it needs to know, what may end it, what became of it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What became of a request on this worker."""

    DONE = "done"
    MOVED = "moved"
    LOST = "lost"


@dataclass(slots=True)
class Signals:
    """What may end a run from outside."""

    cancelled: asyncio.Event
    draining: asyncio.Event
    started_s: float
    """Monotonic time at which the item was `age_s` old."""
    age_s: float

    def remaining_s(self, total_s: float) -> float:
        """Seconds left of the request's total budget."""
        return total_s - self.age_s - (time.monotonic() - self.started_s)


@dataclass(frozen=True, slots=True)
class Settings:
    """What every run of a worker needs to know."""

    wid: str
    chunk_tokens: int
    default_sampling: Mapping[str, float]
