"""The bus contract: what headrace needs of a queue server, in a dozen verbs.

Two implementations stand behind it: `nats.NatsBus` (NATS JetStream) and `memory.MemoryBus` (one process, tests). Both
pass one contract test. Semantics are JetStream's: at-least-once work queues with explicit acks, a limits stream with
compare-and-set publishes, message time to live, and republish of stored records to core subjects.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Expect:
    """Compare-and-set: the last sequence of `subject` (default: the subject published to) must be `seq` (0 = none)."""

    seq: int
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One stored message read back, or one republished live (then `prev` is the subject's previous sequence)."""

    subject: str
    data: bytes
    seq: int
    time_s: float = 0.0
    """Stream timestamp, Unix seconds; 0 on live records."""
    prev: int | None = None
    reason: str | None = None
    """Why the key went away, on delete markers (`MaxAge`, `Purge`, `Remove`, `DEL`); data is then empty."""


@dataclass(slots=True)
class Delivery:
    """One work item handed to this process; it must be acked, termed or left to its ack timer."""

    stream: str
    consumer: str
    subject: str
    data: bytes
    seq: int
    """Stream sequence."""
    time_s: float
    """Stream timestamp of the item, Unix seconds."""
    num_delivered: int
    token: object = field(repr=False)
    """The implementation's ack handle."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream as provisioned. Sizes in bytes, times in seconds; 0 means no limit."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    """Work-queue retention, discard new, at most one message per subject; otherwise limits retention, discard old."""
    max_msgs: int = 0
    max_bytes: int = 0
    max_age_s: float = 0.0
    max_msg_bytes: int = 0
    max_per_subject: int = 0
    republish: tuple[str, str] | None = None
    """(source filter, destination) of republish."""
    allow_ttl: bool = False
    marker_ttl_s: float = 0.0
    """Delete markers for expired messages, written and republished. Needs `max_per_subject` 1: with more, the server
    raises every shorter message life to this value."""
    dedup_s: float = 120.0


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One durable pull consumer with explicit acks."""

    stream: str
    name: str
    filter: str
    ack_wait_s: float
    max_ack_pending: int
    max_deliver: int = 20
    max_waiting: int = 512


class Subscription(Protocol):
    """A live core subscription."""

    async def close(self) -> None:
        """Stop receiving; idempotent."""


Handler = Callable[[Record], Awaitable[None]]
Responder = Callable[[bytes], Awaitable[bytes]]


class Bus(Protocol):
    """All operations raise `BusUnavailableError` when no answer came within their deadline."""

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl_s: float | None = None,
        deadline_s: float = 5.0,
    ) -> int:
        """Store `data` and return its stream sequence, retrying with the same id until the deadline.

        A retry whose first try was stored after all returns that sequence: with `msg_id` by the stream's duplicate
        window, with `expect` on the published subject by reading the subject back and comparing the data.
        Raises QueueFullError (`duplicate=True`: this subject is queued already), FencedError, MissingError.
        """

    async def fetch(self, stream: str, consumer: str, *, batch: int, timeout_s: float) -> list[Delivery]:
        """Take up to `batch` items, waiting at most `timeout_s` for the first; [] when none came.

        Raises MissingError when the consumer does not exist.
        """

    async def ack(self, delivery: Delivery, *, wait: bool = False) -> None:
        """Remove the item from its work queue; `wait` confirms it with the server (best effort, never raises)."""

    async def nak(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        """Give the item back, to be delivered again after `delay_s`."""

    async def progress(self, delivery: Delivery) -> None:
        """Reset the item's ack timer."""

    async def term(self, delivery: Delivery, reason: str) -> None:
        """Remove the item for good; `reason` shows in the server's advisory."""

    async def last(self, stream: str, subject: str) -> Record | None:
        """The newest stored record of `subject` (wildcards allowed), or None."""

    async def read(self, stream: str, subject: str, *, after: int = 0, limit: int = 1000) -> list[Record]:
        """Stored records of `subject` (wildcards allowed) with sequence > `after`, in order, at most `limit`."""

    async def delete(self, stream: str, seq: int) -> bool:
        """Delete one message; False if it was gone. Leaves no marker, nothing is republished."""

    async def purge(self, stream: str, subject: str) -> int:
        """Delete all messages of `subject` (wildcards allowed); returns how many. Nothing is republished."""

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call `handler` for every live message on a core subject, one after another, in order."""

    async def emit(self, subject: str, data: bytes) -> None:
        """Publish on a core subject, without storage or answer."""

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask whoever answers `subject`; raises MissingError at once when nobody does."""

    async def respond(self, subject: str, responder: Responder, *, queue: str = "") -> Subscription:
        """Answer requests on `subject`, sharing them within the queue group `queue`."""

    async def ensure_stream(self, spec: StreamSpec) -> list[str]:
        """Create the stream if missing; otherwise compare and return one readable line per differing field."""

    async def ensure_consumer(self, spec: ConsumerSpec) -> list[str]:
        """Create the consumer if missing; otherwise compare and return one readable line per differing field."""

    async def check_stream(self, spec: StreamSpec) -> list[str]:
        """Compare only: differing fields, or one line saying that the stream is missing."""

    async def consumer_exists(self, stream: str, name: str) -> bool:
        """Whether the durable consumer exists."""

    async def consumers(self, stream: str) -> list[str]:
        """Names of the stream's durable consumers."""

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Remove the consumer; its messages stay in the stream."""

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Call `callback` after every reconnect to the server."""

    async def close(self) -> None:
        """Close the connection; outstanding fetches end; idempotent."""
