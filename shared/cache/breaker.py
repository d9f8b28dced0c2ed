"""The circuit breaker: after a failure the store is left alone for a while, then one caller tries it for all."""

import threading
import time
from collections.abc import Callable


class Breaker:
    """Closed (ask), open (do not ask for `pause_s`), then half open: one probe per pause. Thread-safe."""

    def __init__(
        self,
        pause_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda _is_open: None,
    ) -> None:
        """`on_change` is told when it opens (True) and closes (False)."""
        self._pause_s = pause_s
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._refuse_until: float | None = None  # no call goes through before this time; None: closed, all go through

    def admit(self) -> bool:
        """Whether this caller may ask now; when a probe is due, exactly one caller per pause may."""
        with self._lock:
            if self._refuse_until is None:
                return True
            now = self._clock()
            if now < self._refuse_until:
                return False
            self._refuse_until = now + self._pause_s
            return True

    def is_willing(self) -> bool:
        """Whether `admit` would let somebody through now; takes nothing."""
        until = self._refuse_until
        return until is None or self._clock() >= until

    def succeed(self) -> None:
        """The store answered."""
        if self._refuse_until is None:
            return
        with self._lock:
            self._refuse_until = None
        self._on_change(False)

    def fail(self) -> None:
        """The store did not answer, or answered nonsense."""
        with self._lock:
            was_closed = self._refuse_until is None
            self._refuse_until = self._clock() + self._pause_s
        if was_closed:
            self._on_change(True)
