"""One durable pull consumer in memory: who holds what, until when, and what comes next.

Pure state over explicit time. A record stays pending from its first delivery until it is acked, whatever naks happen.
"""

import math
from dataclasses import dataclass

from headrace.shared.bus import ConsumerSpec, Delivery, Record
from headrace.shared.bus.memory_stream import MemoryStream


@dataclass(slots=True)
class _Pending:
    due: float
    """When the record is delivered again; infinite while it waits for somebody to take it."""
    num_delivered: int


class MemoryConsumer:
    """Deliveries of one consumer."""

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self._pending: dict[int, _Pending] = {}
        self._again: list[int] = []
        """Sequences to deliver again, before anything new."""
        self._cursor = 0

    def take(self, stream: MemoryStream, batch: int, now: float) -> list[Delivery]:
        """Hand out up to `batch` records."""
        taken: list[Delivery] = []
        while len(taken) < batch:
            record = self._next(stream)
            if record is None:
                break
            pending = self._pending.setdefault(record.seq, _Pending(math.inf, 0))
            pending.num_delivered += 1
            pending.due = now + self.spec.ack_wait_s
            taken.append(self._delivery(record, pending.num_delivered))
        return taken

    def done(self, seq: int) -> None:
        """The record needs no further delivery."""
        self._pending.pop(seq, None)

    def give_back(self, seq: int, delay_s: float, now: float) -> None:
        """Deliver the record again after `delay_s`."""
        pending = self._pending.get(seq)
        if pending is not None and seq not in self._again:
            pending.due = now + delay_s
            self.expire(now)

    def extend(self, seq: int, now: float) -> None:
        """Reset the record's ack timer."""
        pending = self._pending.get(seq)
        if pending is not None and seq not in self._again:
            pending.due = now + self.spec.ack_wait_s

    def expire(self, now: float) -> None:
        """Queue again what was not acked in time."""
        for seq, pending in self._pending.items():
            if pending.due <= now:
                pending.due = math.inf
                if self.spec.max_deliver < 0 or pending.num_delivered < self.spec.max_deliver:
                    self._again.append(seq)

    def next_due(self) -> float | None:
        """When `expire` has something to do next."""
        due = min((pending.due for pending in self._pending.values()), default=math.inf)
        return None if math.isinf(due) else due

    def forget(self) -> None:
        """What a killed server does: deliveries not yet acked never happened."""
        self._cursor = min(self._pending, default=self._cursor + 1) - 1
        self._pending.clear()
        self._again.clear()

    def _next(self, stream: MemoryStream) -> Record | None:
        while self._again:
            seq = self._again.pop(0)
            record = stream.get(seq)
            if record is not None and seq in self._pending:
                return record
            self._pending.pop(seq, None)
        if len(self._pending) >= self.spec.max_ack_pending:
            self._drop_gone(stream)
            if len(self._pending) >= self.spec.max_ack_pending:
                return None
        record = next(stream.select(self.spec.filter, after=self._cursor), None)
        if record is not None:
            self._cursor = record.seq
        return record

    def _drop_gone(self, stream: MemoryStream) -> None:
        for seq in [seq for seq in self._pending if stream.get(seq) is None]:
            del self._pending[seq]

    def _delivery(self, record: Record, num_delivered: int) -> Delivery:
        return Delivery(
            stream=self.spec.stream,
            consumer=self.spec.name,
            subject=record.subject,
            data=record.data,
            seq=record.seq,
            time_s=record.time_s,
            num_delivered=num_delivered,
            token=record.seq,
        )
