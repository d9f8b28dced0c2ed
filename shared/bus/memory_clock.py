"""Time for the in-memory bus: the event loop's, or one that only moves when told to."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Do not call after all; idempotent."""


class Clock(Protocol):
    """Where the in-memory bus takes its time from."""

    def now(self) -> float:
        """Unix seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once `now()` has reached `when`."""


class LoopClock:
    """Real time on the running event loop."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """See `Clock.call_at`."""
        return asyncio.get_running_loop().call_later(max(when - time.time(), 0.0), callback)


class ManualClock:
    """Time that stands still until `advance`."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """See `Clock.call_at`."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, making every call that falls due on the way, in order."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            timer.fire()
        self._now = end


class _ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
