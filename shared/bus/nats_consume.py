"""Taking items from JetStream consumers and answering for them.

Owns the lanes and the back-off that keeps every caller's fetch loop cool. Knows nothing of what the items are.
"""

import asyncio
import itertools
import random
from contextlib import suppress

import msgspec
import structlog

from headrace.shared.bus import Delivery
from headrace.shared.bus.nats_api import JetStreamApi
from headrace.shared.bus.nats_lane import NAK, End, Lane, Pull
from headrace.shared.bus.nats_link import Link
from headrace.shared.bus.nats_wire import Hearing
from headrace.shared.errors import BusError, BusUnavailableError, MissingError

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_MAX_DOUBLINGS = 6
_EARLY_S = 0.05
"""A pull that expires this long before its time was refused."""
_ACK_S = 1.0
_BARRIER_S = 2.0
_NS = 1_000_000_000

log = structlog.get_logger()


class Consumption:
    """Fetches and acks of one connection."""

    def __init__(self, link: Link, api: JetStreamApi) -> None:
        self._link = link
        self._api = api
        self._lanes: dict[Lane, Hearing] = {}
        self._free: list[Lane] = []
        self._numbers = itertools.count(1)
        self._refusals: dict[tuple[str, str], int] = {}
        """Pulls in a row that a consumer refused at once; empty while all is well."""
        link.before_ready.append(self._renew)

    async def fetch(self, stream: str, consumer: str, batch: int, timeout_s: float) -> list[Delivery]:
        """See `Bus.fetch`. A pull the server refuses is repeated with growing pauses until `timeout_s` is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        size = batch
        while True:
            left = max(deadline - loop.time(), 0.0)
            if not await self._is_connected(deadline):
                return []
            items, end = await self._pull(Pull(stream, consumer, size, left, is_burst=size > 1))
            if end is End.EXPIRED and deadline - loop.time() > _EARLY_S:
                end = End.REFUSED
            if end in {End.ITEMS, End.EXPIRED}:
                self._refusals.pop((stream, consumer), None)
            if end is End.LOST and self._link.closed.is_set():
                return []
            if end is End.BUSY:
                size = 1
            elif end is End.MISSING:
                await self._pause(stream, consumer, deadline)
                if not await self._api.consumer_exists(stream, consumer):
                    raise MissingError(f"consumer {stream}/{consumer} does not exist")
            elif end is End.REFUSED:
                await self._pause(stream, consumer, deadline)
            if items or end is End.EXPIRED or loop.time() >= deadline:
                return items

    async def settle(self, delivery: Delivery, verdict: bytes) -> None:
        """Send an ack verdict. One that cannot be sent equals one lost on the way: the ack timer stands behind it."""
        try:
            await self._link.send(str(delivery.token), verdict)
        except BusUnavailableError as error:
            log.debug("bus_ack_not_sent", subject=delivery.subject, error=str(error))

    async def ack(self, delivery: Delivery, *, wait: bool) -> None:
        """See `Bus.ack`."""
        if not wait:
            await self.settle(delivery, b"+ACK")
            return
        try:
            await self._link.request(str(delivery.token), b"+ACK", timeout_s=_ACK_S)
        except BusError as error:
            log.debug("bus_ack_not_confirmed", subject=delivery.subject, error=str(error))

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        """See `Bus.nak`."""
        delay = b" " + msgspec.json.encode({"delay": int(delay_s * _NS)}) if delay_s > 0 else b""
        await self.settle(delivery, NAK + delay)

    async def _is_connected(self, deadline: float) -> bool:
        try:
            await self._link.ready(deadline)
        except BusUnavailableError:
            if self._link.closed.is_set():
                raise
            return False
        return True

    async def _pull(self, request: Pull) -> tuple[list[Delivery], End]:
        lane = await self._lane()
        try:
            return await lane.pull(request)
        finally:
            if lane.is_clean:
                self._free.append(lane)
            else:
                await self._retire(lane)

    async def _lane(self) -> Lane:
        if self._free:
            return self._free.pop()
        lane = Lane(self._link, f"{self._link.inbox}.p{next(self._numbers)}")
        self._lanes[lane] = await self._link.hear(f"{lane.inbox}.*", lane.on_frame)
        return lane

    async def _retire(self, lane: Lane) -> None:
        """Make the server drop the lane's pull; items already on their way are given back by the lane."""
        hearing = self._lanes.pop(lane)
        await self._link.leave(hearing)
        self._link.spawn(self._drop(hearing))

    async def _drop(self, hearing: Hearing) -> None:
        with suppress(BusUnavailableError):
            await self._link.rtt(_BARRIER_S)
        await hearing.close()

    def _renew(self) -> None:
        for lane in self._lanes:
            lane.interrupt()

    async def _pause(self, stream: str, consumer: str, deadline: float) -> None:
        doublings = self._refusals.get((stream, consumer), 0)
        self._refusals[stream, consumer] = min(doublings + 1, _MAX_DOUBLINGS)
        longest = min(_FIRST_PAUSE_S * 2**doublings, _LONGEST_PAUSE_S)
        left = deadline - asyncio.get_running_loop().time()
        # Jitter downwards only, and never past the caller's patience.
        pause_s = longest * random.uniform(0.75, 1.0)  # noqa: S311 - spreading, not secrecy
        await asyncio.sleep(max(min(pause_s, left), min(_FIRST_PAUSE_S, longest)))
