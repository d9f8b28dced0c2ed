"""The one server behind any number of in-memory connections: streams, consumers, waiting fetches, core subscribers.

Everything happens at once and in order inside a call; what needs time later is one timer on the clock.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.shared.bus import ConsumerSpec, Delivery, Expect, Record, StreamSpec
from headrace.shared.bus.drift import consumer_drift, stream_drift
from headrace.shared.bus.memory_clock import Clock, LoopClock, Timer
from headrace.shared.bus.memory_consumer import MemoryConsumer
from headrace.shared.bus.memory_stream import MemoryStream, Stored, matches
from headrace.shared.errors import BusError, MissingError

MAX_PAYLOAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Heard:
    """A core message at a subscriber; `reply` is None when nobody waits for an answer."""

    record: Record
    reply: asyncio.Future[bytes] | None = None


@dataclass(slots=True, eq=False)
class Ear:
    """One core subscription: where its messages queue up."""

    subject: str
    group: str
    heard: asyncio.Queue[Heard] = field(default_factory=asyncio.Queue)


@dataclass(slots=True, eq=False)
class _Waiter:
    batch: int
    answer: asyncio.Future[list[Delivery]]


class MemoryCore:
    """An in-memory JetStream."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or LoopClock()
        self.reconnect_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._streams: dict[str, MemoryStream] = {}
        self._consumers: dict[tuple[str, str], MemoryConsumer] = {}
        self._waiters: dict[tuple[str, str], deque[_Waiter]] = {}
        self._ears: list[Ear] = []
        self._timer: Timer | None = None

    async def restart(self) -> None:
        """What clients see of a killed and restarted server: deliveries forgotten, storage kept, reconnects."""
        for consumer in self._consumers.values():
            consumer.forget()
        self._advance()
        for callback in tuple(self.reconnect_callbacks):
            await callback()

    def publish(
        self, subject: str, data: bytes, *, msg_id: str | None, expect: Expect | None, ttl_s: float | None
    ) -> int:
        """Store a message in the stream that takes its subject; core subscribers hear it, stored or not."""
        _check_size(subject, data)
        self._hear(Heard(Record(subject, data, 0)))
        stream = next((each for each in self._streams.values() if each.takes(subject)), None)
        if stream is None:
            raise MissingError(f"{subject}: no stream takes this subject")
        self._advance()
        seq, stored = stream.publish(subject, data, self.clock.now(), msg_id=msg_id, expect=expect, ttl_s=ttl_s)
        if stored is not None:
            self._republish(stream, stored)
        self._advance()
        return seq

    def emit(self, subject: str, data: bytes) -> None:
        """A core message; only for subjects that no stream takes."""
        _check_size(subject, data)
        self._hear(Heard(Record(subject, data, 0)))

    def ask(self, subject: str, data: bytes) -> asyncio.Future[bytes]:
        """A request; raises MissingError when nobody listens."""
        _check_size(subject, data)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if not self._hear(Heard(Record(subject, data, 0), answer)):
            raise MissingError(f"{subject}: nobody answers")
        return answer

    def listen(self, subject: str, group: str) -> Ear:
        """Subscribe; `deafen` ends it."""
        ear = Ear(subject, group)
        self._ears.append(ear)
        return ear

    def deafen(self, ear: Ear) -> None:
        """Unsubscribe; idempotent."""
        if ear in self._ears:
            self._ears.remove(ear)

    def wait(self, stream: str, consumer: str, batch: int) -> asyncio.Future[list[Delivery]]:
        """Queue up for items; cancel the future to leave."""
        self.consumer(stream, consumer)
        answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((stream, consumer), deque()).append(_Waiter(batch, answer))
        self._advance()
        return answer

    def done(self, delivery: Delivery) -> None:
        """An item is acked or termed."""
        consumer = self._consumers.get((delivery.stream, delivery.consumer))
        if consumer is not None:
            consumer.done(delivery.seq)
            stream = self._streams[delivery.stream]
            if stream.spec.work_queue:
                stream.remove(delivery.seq)
            self._advance()

    def give_back(self, delivery: Delivery, delay_s: float) -> None:
        """An item is nak'ed."""
        consumer = self._consumers.get((delivery.stream, delivery.consumer))
        if consumer is not None:
            consumer.give_back(delivery.seq, delay_s, self.clock.now())
            self._advance()

    def extend(self, delivery: Delivery) -> None:
        """An item's ack timer starts anew."""
        consumer = self._consumers.get((delivery.stream, delivery.consumer))
        if consumer is not None:
            consumer.extend(delivery.seq, self.clock.now())
            self._advance()

    def stream(self, name: str) -> MemoryStream:
        """A stream, with everything that is due by now done; raises MissingError."""
        if name not in self._streams:
            raise MissingError(f"stream {name} does not exist")
        self._advance()
        return self._streams[name]

    def consumer(self, stream: str, name: str) -> MemoryConsumer:
        """A consumer; raises MissingError."""
        if (stream, name) not in self._consumers:
            raise MissingError(f"consumer {stream}/{name} does not exist")
        return self._consumers[stream, name]

    def ensure_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.ensure_stream`."""
        if spec.name in self._streams:
            return stream_drift(spec, self._streams[spec.name].spec)
        self._streams[spec.name] = MemoryStream(spec)
        return []

    def check_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.check_stream`."""
        return self.ensure_stream(spec) if spec.name in self._streams else [f"stream {spec.name}: missing"]

    def ensure_consumer(self, spec: ConsumerSpec) -> list[str]:
        """See `Bus.ensure_consumer`."""
        self.stream(spec.stream)
        found = self._consumers.setdefault((spec.stream, spec.name), MemoryConsumer(spec))
        return consumer_drift(spec, found.spec)

    def consumers(self, stream: str) -> list[str]:
        """See `Bus.consumers`."""
        self.stream(stream)
        return [name for owner, name in self._consumers if owner == stream]

    def delete_consumer(self, stream: str, name: str) -> None:
        """See `Bus.delete_consumer`; who waits for its items is told."""
        self._consumers.pop((stream, name), None)
        for waiter in self._waiters.pop((stream, name), ()):
            if not waiter.answer.done():
                waiter.answer.set_exception(MissingError(f"consumer {stream}/{name} was deleted"))

    def _hear(self, heard: Heard) -> bool:
        groups: dict[str, list[Ear]] = {}
        reached = [ear for ear in self._ears if matches(ear.subject, heard.record.subject)]
        for ear in reached:
            if ear.group:
                groups.setdefault(ear.group, []).append(ear)
            else:
                ear.heard.put_nowait(heard)
        for ears in groups.values():
            random.choice(ears).heard.put_nowait(heard)  # noqa: S311 - sharing work, not secrecy
        return bool(reached)

    def _republish(self, stream: MemoryStream, stored: Stored) -> None:
        if stream.spec.republish is None:
            return
        source, destination = stream.spec.republish
        record = stored.record
        if matches(source, record.subject):
            tail = record.subject.removeprefix(source.removesuffix(">"))
            subject = destination.replace(">", tail)
            self._hear(Heard(Record(subject, record.data, record.seq, prev=stored.prev, reason=record.reason)))

    def _advance(self) -> None:
        """Do what is due, serve who waits, and set the timer for what comes next."""
        now = self.clock.now()
        for stream in self._streams.values():
            for marker in stream.expire(now):
                self._republish(stream, marker)
        for consumer in self._consumers.values():
            consumer.expire(now)
        for (stream_name, name), waiters in self._waiters.items():
            self._serve(self._streams[stream_name], self._consumers[stream_name, name], waiters, now)
        if self._timer is not None:
            self._timer.cancel()
        due = [stream.next_due() for stream in self._streams.values()]
        due += [consumer.next_due() for consumer in self._consumers.values()]
        soonest = min((when for when in due if when is not None), default=None)
        self._timer = None if soonest is None else self.clock.call_at(soonest, self._advance)

    def _serve(self, stream: MemoryStream, consumer: MemoryConsumer, waiters: deque[_Waiter], now: float) -> None:
        while waiters:
            if waiters[0].answer.done():
                waiters.popleft()
                continue
            taken = consumer.take(stream, waiters[0].batch, now)
            if not taken:
                return
            waiters.popleft().answer.set_result(taken)


def _check_size(subject: str, data: bytes) -> None:
    """Refuse what no server would take."""
    if len(data) > MAX_PAYLOAD_BYTES:
        raise BusError(
            f"{subject}: message of {len(data)} bytes exceeds the server's max_payload of {MAX_PAYLOAD_BYTES}"
        )
