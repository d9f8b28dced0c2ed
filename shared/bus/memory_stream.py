"""One stream in memory: what is stored, what is refused, what falls out by age or size.

Pure state over explicit time: knows no event loop, no consumers and no subscribers.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.shared.bus import Expect, Record, StreamSpec
from headrace.shared.errors import BusError, FencedError, QueueFullError

_OVERHEAD_BYTES = 32
_MIN_TTL_S = 1.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with the previous sequence of its subject, as republish tells it."""

    record: Record
    prev: int


def matches(pattern: str, subject: str) -> bool:
    """Whether `subject` matches `pattern` (`*` is one token, a last `>` is one or more)."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(want in ("*", have) for want, have in zip(wanted, given, strict=True))


class MemoryStream:
    """Stored messages in sequence order, with JetStream's limits."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self._messages: dict[int, Record] = {}
        self._subjects: dict[str, dict[int, None]] = {}
        """Sequences per subject, oldest first."""
        self._ids: dict[str, tuple[float, int]] = {}
        self._due: list[tuple[float, int]] = []
        self._last_seq = 0
        self._bytes = 0

    def takes(self, subject: str) -> bool:
        """Whether messages of `subject` are stored here."""
        return any(matches(pattern, subject) for pattern in self.spec.subjects)

    def publish(
        self, subject: str, data: bytes, now: float, *, msg_id: str | None, expect: Expect | None, ttl_s: float | None
    ) -> tuple[int, Stored | None]:
        """Store a message; (sequence, what was stored), the latter None for a duplicate id."""
        self._check(subject, data, expect, ttl_s)
        if msg_id is not None:
            self._forget_ids(now)
            if msg_id in self._ids:
                return self._ids[msg_id][1], None
        self._make_room(subject, data)
        stored = self._store(subject, data, now, ttl_s, reason=None)
        if msg_id is not None:
            self._ids[msg_id] = (now + self.spec.dedup_s, stored.record.seq)
        return stored.record.seq, stored

    def expire(self, now: float) -> list[Stored]:
        """Drop what is too old; returns the markers left behind."""
        markers = []
        while self._due and self._due[0][0] <= now:
            _, seq = heapq.heappop(self._due)
            record = self.remove(seq)
            if record is None or record.reason or record.subject in self._subjects or not self.spec.marker_ttl_s:
                continue
            marker = self._store(record.subject, b"", now, self.spec.marker_ttl_s, reason="MaxAge")
            markers.append(Stored(marker.record, prev=seq))
        return markers

    def next_due(self) -> float | None:
        """When `expire` has something to do next."""
        while self._due and self._due[0][1] not in self._messages:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def remove(self, seq: int) -> Record | None:
        """Take a message out; None if it was gone."""
        record = self._messages.pop(seq, None)
        if record is not None:
            sequences = self._subjects[record.subject]
            del sequences[seq]
            if not sequences:
                del self._subjects[record.subject]
            self._bytes -= _size(record.subject, record.data)
        return record

    def purge(self, pattern: str) -> int:
        """Remove all messages of a subject; returns how many."""
        doomed = [record.seq for record in self.select(pattern, after=0)]
        for seq in doomed:
            self.remove(seq)
        return len(doomed)

    def last(self, pattern: str) -> Record | None:
        """The newest message of a subject."""
        newest = max((self._last_of(subject) for subject in self._subjects if matches(pattern, subject)), default=0)
        return self._messages.get(newest)

    def select(self, pattern: str, *, after: int) -> Iterator[Record]:
        """Messages of a subject with sequence > `after`, in order."""
        for seq, record in self._messages.items():
            if seq > after and matches(pattern, record.subject):
                yield record

    def get(self, seq: int) -> Record | None:
        """One message."""
        return self._messages.get(seq)

    def _last_of(self, subject: str) -> int:
        return next(reversed(self._subjects.get(subject, {0: None})))

    def _check(self, subject: str, data: bytes, expect: Expect | None, ttl_s: float | None) -> None:
        if ttl_s is not None and not self.spec.allow_ttl:
            raise BusError(f"{subject}: per-message TTL is disabled")
        if ttl_s is not None and ttl_s < _MIN_TTL_S:
            raise BusError(f"{subject}: invalid per-message TTL")
        if self.spec.max_msg_bytes and len(data) > self.spec.max_msg_bytes:
            raise BusError(f"{subject}: message size exceeds maximum allowed")
        if expect is not None:
            last = self._last_of(expect.subject or subject)
            if last != expect.seq:
                raise FencedError(f"{subject}: wrong last sequence: {last}")

    def _make_room(self, subject: str, data: bytes) -> None:
        if self.spec.work_queue:
            if subject in self._subjects:
                raise QueueFullError(f"{subject}: maximum messages per subject exceeded", duplicate=True)
            if self._is_over(len(self._messages) + 1, self._bytes + _size(subject, data)):
                raise QueueFullError(f"{subject}: stream {self.spec.name} is full")

    def _store(self, subject: str, data: bytes, now: float, ttl_s: float | None, *, reason: str | None) -> Stored:
        prev = self._last_of(subject)
        self._last_seq += 1
        record = Record(subject, data, self._last_seq, time_s=now, reason=reason)
        self._messages[record.seq] = record
        self._subjects.setdefault(subject, {})[record.seq] = None
        self._bytes += _size(subject, data)
        if ttl_s is not None and self.spec.max_per_subject != 1:
            # JetStream's rule: where older values may come back to light, nothing expires before its marker would.
            ttl_s = max(ttl_s, self.spec.marker_ttl_s)
        lives = [life for life in (ttl_s, self.spec.max_age_s) if life]
        if lives:
            heapq.heappush(self._due, (now + min(lives), record.seq))
        self._evict(subject)
        return Stored(record, prev)

    def _evict(self, subject: str) -> None:
        sequences = self._subjects[subject]
        while self.spec.max_per_subject and len(sequences) > self.spec.max_per_subject:
            self.remove(next(iter(sequences)))
        while self._is_over(len(self._messages), self._bytes):
            self.remove(next(iter(self._messages)))

    def _is_over(self, num_messages: int, num_bytes: int) -> bool:
        spec = self.spec
        return bool((spec.max_msgs and num_messages > spec.max_msgs) or (spec.max_bytes and num_bytes > spec.max_bytes))

    def _forget_ids(self, now: float) -> None:
        while self._ids and next(iter(self._ids.values()))[0] <= now:
            del self._ids[next(iter(self._ids))]


def _size(subject: str, data: bytes) -> int:
    return len(subject) + len(data) + _OVERHEAD_BYTES
