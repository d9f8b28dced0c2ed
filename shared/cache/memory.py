"""A block store inside one process: for tests, and wherever nothing needs to be shared."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from headrace.shared.cache import Buffer, Value


class MemoryStore:
    """Least recently used values go first once `max_bytes` of values are held. Thread-safe.

    Answers exactly as the shared store does, with one difference: it is never unhealthy until it is closed.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        """The longest leading run that is there; None from the first missing key on, as blocks behind are useless."""
        found: list[Buffer | None] = [None] * len(keys)
        with self._lock:
            for place, key in enumerate(keys):
                value = self._values.get(key)
                if value is None:
                    break
                self._values.move_to_end(key)
                found[place] = value
        return found

    def put(self, items: Sequence[tuple[str, Value]]) -> int:
        """Store values in order; one larger than the whole store is refused."""
        num_stored = 0
        with self._lock:
            for key, parts in items:
                value = b"".join(parts) if isinstance(parts, tuple) else bytes(parts)
                if not self._closed and len(value) <= self._max_bytes:
                    self._store(key, value)
                    num_stored += 1
        return num_stored

    def _store(self, key: str, value: bytes) -> None:
        self._num_bytes += len(value) - len(self._values.pop(key, b""))
        self._values[key] = value
        while self._num_bytes > self._max_bytes:
            _, oldest = self._values.popitem(last=False)
            self._num_bytes -= len(oldest)

    def count_prefix(self, keys: Sequence[str]) -> int:
        """Length of the leading run that is there; looking does not keep a value alive."""
        with self._lock:
            return next((place for place, key in enumerate(keys) if key not in self._values), len(keys))

    def discard(self, key: str) -> None:
        """Remove a value, if it is there."""
        with self._lock:
            self._num_bytes -= len(self._values.pop(key, b""))

    def is_healthy(self) -> bool:
        """Whether it is open."""
        return not self._closed

    def ping(self) -> bool:
        """Whether it is open."""
        return not self._closed

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._values.clear()
            self._num_bytes = 0
