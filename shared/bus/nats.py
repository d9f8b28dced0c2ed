"""The bus over NATS JetStream: `connect` makes a `NatsBus`, which hands every verb to the part that knows it.

Needs nats-server 2.14 or newer with JetStream and a max_payload of 8 MiB.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

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
from headrace.shared.bus.nats_api import JetStreamApi
from headrace.shared.bus.nats_consume import Consumption
from headrace.shared.bus.nats_link import Link
from headrace.shared.bus.nats_probe import probe, without_user
from headrace.shared.bus.nats_publish import Publisher, publish_headers
from headrace.shared.bus.nats_read import Reader, live_record
from headrace.shared.bus.nats_wire import Frame
from headrace.shared.errors import BusUnavailableError, ConfigError

_RTT_S = 2.0
_MAX_ANSWERS = 64
"""Requests one responder works on at once."""


async def connect(url: str, *, name: str, timeout_s: float) -> "NatsBus":
    """Connect to the server at `url` (user and password may stand in it), trying again for `timeout_s`.

    Raises ConfigError with one line: no URL, unreachable, credentials refused, too old, or max_payload below 8 MiB.
    """
    link = Link()
    deadline = asyncio.get_running_loop().time() + timeout_s
    await probe(url, timeout_s)
    try:
        async with asyncio.timeout_at(deadline):
            await link.open(url, name)
    except TimeoutError:
        await link.close()
        raise ConfigError(f"{without_user(url)}: the server went away while connecting") from None
    return NatsBus(link)


class NatsBus:
    """See `Bus`; all calls belong to the event loop that connected."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._api = JetStreamApi(link)
        self._reader = Reader(link)
        self._publisher = Publisher(link, self._reader)
        self._consumption = Consumption(link, self._api)

    @property
    def closed(self) -> asyncio.Event:
        """Set when the connection is closed and will not come back, by `close` or by the server's refusal."""
        return self._link.closed

    async def rtt(self) -> float:
        """Health probe: seconds of one round trip; raises BusUnavailableError after 2 s."""
        return await self._link.rtt(_RTT_S)

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
        """See `Bus.publish`."""
        headers = publish_headers(msg_id, expect, ttl_s)
        return await self._publisher.publish(subject, data, headers, expect=expect, deadline_s=deadline_s)

    async def fetch(self, stream: str, consumer: str, *, batch: int, timeout_s: float) -> list[Delivery]:
        """See `Bus.fetch`."""
        return await self._consumption.fetch(stream, consumer, batch, timeout_s)

    async def ack(self, delivery: Delivery, *, wait: bool = False) -> None:
        """See `Bus.ack`."""
        await self._consumption.ack(delivery, wait=wait)

    async def nak(self, delivery: Delivery, *, delay_s: float = 0.0) -> None:
        """See `Bus.nak`."""
        await self._consumption.nak(delivery, delay_s)

    async def progress(self, delivery: Delivery) -> None:
        """See `Bus.progress`."""
        await self._consumption.settle(delivery, b"+WPI")

    async def term(self, delivery: Delivery, reason: str) -> None:
        """See `Bus.term`."""
        await self._consumption.settle(delivery, b"+TERM " + reason.encode())

    async def last(self, stream: str, subject: str) -> Record | None:
        """See `Bus.last`."""
        return await self._reader.last(stream, subject)

    async def read(self, stream: str, subject: str, *, after: int = 0, limit: int = 1000) -> list[Record]:
        """See `Bus.read`."""
        return await self._reader.read(stream, subject, after, limit)

    async def delete(self, stream: str, seq: int) -> bool:
        """See `Bus.delete`."""
        return await self._api.delete(stream, seq)

    async def purge(self, stream: str, subject: str) -> int:
        """See `Bus.purge`."""
        return await self._api.purge(stream, subject)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """See `Bus.subscribe`. An exception of the handler is logged; the next message is handled all the same."""

        async def on_frame(frame: Frame) -> None:
            await guarded(handler(live_record(frame)), "bus_handler_failed", subject=subject)

        return await self._listen(subject, on_frame)

    async def emit(self, subject: str, data: bytes) -> None:
        """See `Bus.emit`."""
        await self._link.send(subject, data)

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        """See `Bus.request`."""
        return (await self._link.request(subject, data, timeout_s=timeout_s)).data

    async def respond(self, subject: str, responder: Responder, *, queue: str = "") -> Subscription:
        """See `Bus.respond`. Up to 64 requests are worked on at once; a failing responder leaves its asker waiting."""
        places = asyncio.Semaphore(_MAX_ANSWERS)

        async def answer(frame: Frame) -> None:
            try:
                reply = await responder(frame.data)
                if frame.reply:
                    await self._link.send(frame.reply, reply)
            finally:
                places.release()

        async def on_frame(frame: Frame) -> None:
            await places.acquire()
            self._link.spawn(guarded(answer(frame), "bus_responder_failed", subject=subject))

        return await self._listen(subject, on_frame, queue)

    async def ensure_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.ensure_stream`."""
        return await self._api.ensure_stream(spec)

    async def ensure_consumer(self, spec: ConsumerSpec) -> list[str]:
        """See `Bus.ensure_consumer`."""
        return await self._api.ensure_consumer(spec)

    async def check_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.check_stream`."""
        return await self._api.check_stream(spec)

    async def consumer_exists(self, stream: str, name: str) -> bool:
        """See `Bus.consumer_exists`."""
        return await self._api.consumer_exists(stream, name)

    async def consumers(self, stream: str) -> list[str]:
        """See `Bus.consumers`."""
        return await self._api.consumers(stream)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """See `Bus.delete_consumer`."""
        await self._api.delete_consumer(stream, name)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """See `Bus.on_reconnect`."""
        self._link.reconnect_callbacks.append(callback)

    async def close(self) -> None:
        """See `Bus.close`; takes at most a few seconds, whatever the server does."""
        await self._link.close()

    async def _listen(
        self, subject: str, on_frame: Callable[[Frame], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        subscription = await self._link.listen(subject, on_frame, queue=queue)
        # The server knows the subscription once it answered a ping sent after it; offline, the reconnect replays it.
        with suppress(BusUnavailableError):
            await self._link.rtt(_RTT_S)
        return subscription
