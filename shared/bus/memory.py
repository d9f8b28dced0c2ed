"""The bus without a server: `MemoryServer().connect()` gives one of any number of connections within this process.

For tests and simulations. Every verb gives way to the event loop once, as a round trip would.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar

from headrace.shared.bus import (
    ConsumerSpec,
    Delivery,
    Expect,
    Handler,
    Record,
    Responder,
    StreamSpec,
    Subscription,
)
from headrace.shared.bus.guard import guarded
from headrace.shared.bus.memory_clock import Clock
from headrace.shared.bus.memory_core import Ear, Heard, MemoryCore
from headrace.shared.bus.memory_subscription import MemorySubscription
from headrace.shared.errors import BusUnavailableError, MissingError

_T = TypeVar("_T")


class MemoryServer:
    """An in-memory queue server; `clock` may be a `ManualClock`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._core = MemoryCore(clock)

    def connect(self) -> "MemoryBus":
        """A new connection."""
        return MemoryBus(self._core)

    async def restart(self) -> None:
        """Be killed and started again, as clients see it: deliveries forgotten, storage kept, everybody reconnects."""
        await self._core.restart()


class MemoryBus:
    """See `Bus`."""

    def __init__(self, core: MemoryCore) -> None:
        self.closed = asyncio.Event()
        self._core = core
        self._subscriptions: set[MemorySubscription] = set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._callbacks: list[Callable[[], Awaitable[None]]] = []

    async def rtt(self) -> float:
        """Health probe: seconds of one round trip."""
        await self._trip()
        return 0.0

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl_s: float | None = None,
        deadline_s: float = 5.0,  # noqa: ARG002 - memory answers at once
    ) -> int:
        """See `Bus.publish`."""
        await self._trip()
        return self._core.publish(subject, data, msg_id=msg_id, expect=expect, ttl_s=ttl_s)

    async def fetch(self, stream: str, consumer: str, *, batch: int, timeout_s: float) -> list[Delivery]:
        """See `Bus.fetch`."""
        await self._trip()
        answer = self._core.wait(stream, consumer, batch)
        try:
            return await self._within(answer, timeout_s)
        except (TimeoutError, BusUnavailableError):
            return []
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                for item in answer.result():
                    self._core.give_back(item, 0.0)
            raise

    async def ack(self, delivery: Delivery, *, wait: bool = False) -> None:
        """See `Bus.ack`."""
        if wait:
            await asyncio.sleep(0)
        if not self.closed.is_set():
            self._core.done(delivery)

    async def nak(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        """See `Bus.nak`."""
        if not self.closed.is_set():
            self._core.give_back(delivery, delay_s)

    async def progress(self, delivery: Delivery) -> None:
        """See `Bus.progress`."""
        if not self.closed.is_set():
            self._core.extend(delivery)

    async def term(self, delivery: Delivery, reason: str) -> None:  # noqa: ARG002 - memory has no advisories
        """See `Bus.term`."""
        if not self.closed.is_set():
            self._core.done(delivery)

    async def last(self, stream: str, subject: str) -> Record | None:
        """See `Bus.last`."""
        await self._trip()
        return self._core.stream(stream).last(subject)

    async def read(self, stream: str, subject: str, *, after: int = 0, limit: int = 1000) -> list[Record]:
        """See `Bus.read`."""
        await self._trip()
        return list(islice(self._core.stream(stream).select(subject, after=after), limit))

    async def delete(self, stream: str, seq: int) -> bool:
        """See `Bus.delete`."""
        await self._trip()
        return self._core.stream(stream).remove(seq) is not None

    async def purge(self, stream: str, subject: str) -> int:
        """See `Bus.purge`."""
        await self._trip()
        return self._core.stream(stream).purge(subject)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """See `Bus.subscribe`."""
        await self._trip()

        async def on_heard(heard: Heard) -> None:
            await guarded(handler(heard.record), "bus_handler_failed", subject=subject)

        return self._listen(self._core.listen(subject, ""), on_heard)

    async def emit(self, subject: str, data: bytes) -> None:
        """See `Bus.emit`."""
        await self._trip()
        self._core.emit(subject, data)

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        """See `Bus.request`."""
        await self._trip()
        try:
            return await self._within(self._core.ask(subject, data), timeout_s)
        except TimeoutError:
            raise BusUnavailableError(f"{subject}: no answer within {timeout_s:g} s") from None

    async def respond(self, subject: str, responder: Responder, *, queue: str = "") -> Subscription:
        """See `Bus.respond`."""
        await self._trip()
        working: set[asyncio.Task[None]] = set()

        async def answer(heard: Heard) -> None:
            data = await responder(heard.record.data)
            if heard.reply is not None and not heard.reply.done():
                heard.reply.set_result(data)

        async def on_heard(heard: Heard) -> None:
            task = asyncio.create_task(guarded(answer(heard), "bus_responder_failed", subject=subject))
            working.add(task)
            task.add_done_callback(working.discard)

        return self._listen(self._core.listen(subject, queue), on_heard)

    async def ensure_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.ensure_stream`."""
        await self._trip()
        return self._core.ensure_stream(spec)

    async def ensure_consumer(self, spec: ConsumerSpec) -> list[str]:
        """See `Bus.ensure_consumer`."""
        await self._trip()
        return self._core.ensure_consumer(spec)

    async def check_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.check_stream`."""
        await self._trip()
        return self._core.check_stream(spec)

    async def consumer_exists(self, stream: str, name: str) -> bool:
        """See `Bus.consumer_exists`."""
        await self._trip()
        try:
            return name in self._core.consumers(stream)
        except MissingError:
            return False

    async def consumers(self, stream: str) -> list[str]:
        """See `Bus.consumers`."""
        await self._trip()
        return self._core.consumers(stream)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """See `Bus.delete_consumer`."""
        await self._trip()
        self._core.delete_consumer(stream, name)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """See `Bus.on_reconnect`."""
        self._callbacks.append(callback)
        self._core.reconnect_callbacks.append(callback)

    async def close(self) -> None:
        """See `Bus.close`."""
        self.closed.set()
        for callback in self._callbacks:
            self._core.reconnect_callbacks.remove(callback)
        self._callbacks.clear()
        for waiting in tuple(self._waiting):
            if not waiting.done():
                waiting.set_exception(BusUnavailableError("the connection to the queue server is closed"))
        for subscription in tuple(self._subscriptions):
            await subscription.close()

    def _listen(self, ear: Ear, on_heard: "Callable[[Heard], Coroutine[Any, Any, None]]") -> Subscription:
        subscription = MemorySubscription(self._core, ear, on_heard)
        self._subscriptions.add(subscription)
        subscription.task.add_done_callback(lambda _: self._subscriptions.discard(subscription))
        return subscription

    async def _trip(self) -> None:
        await asyncio.sleep(0)
        if self.closed.is_set():
            raise BusUnavailableError("the connection to the queue server is closed")

    async def _within(self, answer: "asyncio.Future[_T]", timeout_s: float) -> _T:
        """Wait by the server's clock; TimeoutError when `timeout_s` are over."""
        clock = self._core.clock
        timer = clock.call_at(
            clock.now() + timeout_s, lambda: None if answer.done() else answer.set_exception(TimeoutError())
        )
        self._waiting.add(answer)
        try:
            return await answer
        finally:
            timer.cancel()
            answer.cancel()
            self._waiting.discard(answer)
