"""Pulling work: slots bound what is held at once, held items keep their ack timers fresh.

Nothing is fetched that cannot be started at once, so nobody ever gives work back for lack of room.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from headrace.shared.bus import Bus, Delivery
from headrace.shared.errors import BusError, MissingError

_FETCH_S = 1.0
"""Longest wait of one fetch: bounds the delay when the server forgot a pull."""
_MISSING_S = 0.2
_TICK_S = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class _Held:
    delivery: Delivery
    renew_s: float
    due: float


class Slots:
    """A counter of free places that several fetch loops share."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        """Places in which an item is worked on; a place a fetch loop keeps ready is neither free nor used."""
        self.taken = 0
        """Items ever started."""
        self._free = total
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """Places nobody holds."""
        return self._free

    async def take(self, most: int) -> int:
        """Wait until a place is free, then take up to `most`."""
        while self._free < 1:
            self._freed.clear()
            await self._freed.wait()
        return self.take_free(most)

    def take_free(self, most: int) -> int:
        """Take up to `most` places of those that are free now."""
        taken = min(most, self._free)
        self._free -= taken
        return taken

    def give(self, num: int = 1) -> None:
        """Give places back."""
        self._free += num
        assert self._free <= self.total
        self._freed.set()


class Puller:
    """Fetch loops of one worker: takes items while slots are free and starts one task for each."""

    def __init__(
        self,
        bus: Bus,
        slots: Slots,
        stop: asyncio.Event,
        *,
        on_failure: Callable[[Delivery, Exception], Awaitable[None]],
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_failure` answers for an item whose handler raised; it must not raise itself.

        `is_alive` gates the renewal of ack timers: a wedged worker must lose its work.
        """
        self._bus = bus
        self._slots = slots
        self._stop = stop
        self._on_failure = on_failure
        self._is_alive = is_alive
        self._held: dict[tuple[str, int], _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(
        self,
        stream: str,
        consumer: str,
        handle: Callable[[Delivery], Awaitable[None]],
        *,
        batch: int = 1,
        renew_s: float,
        enabled: Callable[[], bool] = lambda: True,
        look_s: float = 0.1,
    ) -> None:
        """Pull one consumer until stopped. While `enabled` is False it does not fetch and asks again every `look_s`.

        The ack timer of a held item is renewed every `renew_s`, at most a third of the consumer's ack wait.
        """
        while not self._stop.is_set():
            if not enabled():
                await self._pause(look_s)
                continue
            taken = await self._take(batch)
            if not taken:
                return
            deliveries: list[Delivery] = []
            try:
                deliveries = await self._fetch(stream, consumer, taken)
            finally:
                self._slots.give(taken - len(deliveries))
            for delivery in deliveries:
                self._start(_Held(delivery, renew_s, time.monotonic() + renew_s), handle)

    async def renew(self) -> None:
        """Keep the ack timers of held items fresh until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            if not self._is_alive():
                continue
            for held in [held for held in self._held.values() if held.due <= now]:
                held.due = now + held.renew_s
                try:
                    await self._bus.progress(held.delivery)
                except BusError as error:
                    log.warning("progress_lost", reason=str(error))

    async def settle(self) -> None:
        """Wait for all started items to end."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def abandon(self) -> None:
        """Stop all started items where they are; nothing is answered for them."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, batch: int) -> int:
        """Places for the next fetch; 0 when stopped."""
        if self._slots.free:
            return 0 if self._stop.is_set() else self._slots.take_free(batch)
        take = asyncio.ensure_future(self._slots.take(batch))
        stop = asyncio.ensure_future(self._stop.wait())
        taken = 0
        try:
            await asyncio.wait({take, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                taken = take.result()
            return taken
        finally:
            stop.cancel()
            if not taken and not take.cancel():
                self._slots.give(take.result())

    async def _fetch(self, stream: str, consumer: str, num: int) -> list[Delivery]:
        try:
            return await self._bus.fetch(stream, consumer, batch=num, timeout_s=_FETCH_S)
        except MissingError:
            await self._pause(_MISSING_S)
        except BusError as error:
            log.warning("fetch_failed", stream=stream, consumer=consumer, reason=str(error))
            await self._pause(_FETCH_S)
        return []

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    def _start(self, held: _Held, handle: Callable[[Delivery], Awaitable[None]]) -> None:
        self._slots.used += 1
        self._slots.taken += 1
        task = asyncio.create_task(self._hold(held, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hold(self, held: _Held, handle: Callable[[Delivery], Awaitable[None]]) -> None:
        key = (held.delivery.stream, held.delivery.seq)
        self._held[key] = held
        try:
            await handle(held.delivery)
        except Exception as error:  # noqa: BLE001  # an item must be answered for, whatever its handler ran into
            await self._on_failure(held.delivery, error)
        finally:
            if self._held.get(key) is held:
                del self._held[key]
            self._slots.used -= 1
            self._slots.give()
