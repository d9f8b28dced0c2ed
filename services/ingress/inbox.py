"""One subscription for all replies to this ingress, handed out to the feeds of its open requests."""

import asyncio

from headrace.ingress.feed import Feed
from headrace.shared import subjects
from headrace.shared.bus import Bus, Record, Subscription
from headrace.shared.telemetry import metrics

_MAX_REPLAYS = 8
"""After a reconnect all open requests read their logs; this many at once, so that nobody starves."""


class Inbox:
    """Routes republished run-log records by request id."""

    def __init__(self, bus: Bus, ing: str, silence_s: float) -> None:
        self._bus = bus
        self._ing = ing
        self._silence_s = silence_s
        self._feeds: dict[str, Feed] = {}
        self._replays = asyncio.Semaphore(_MAX_REPLAYS)
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Subscribe for the life of the process."""
        self._subscription = await self._bus.subscribe(subjects.out(self._ing), self._on_record)
        self._bus.on_reconnect(self._on_reconnect)

    async def stop(self) -> None:
        """Unsubscribe; idempotent."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def open(self, rid: str) -> Feed:
        """Register a request, before it is published."""
        feed = Feed(self._ing, rid, self._silence_s)
        self._feeds[rid] = feed
        self._count()
        return feed

    def close(self, feed: Feed) -> None:
        """Forget a request; late records are dropped. Idempotent."""
        feed.close()
        self._feeds.pop(feed.rid, None)
        self._count()

    async def replay(self, feed: Feed) -> None:
        """Let a feed read its log."""
        async with self._replays:
            await feed.replay(self._bus)

    async def _on_record(self, record: Record) -> None:
        feed = self._feeds.get(record.subject.rsplit(".", 2)[1])
        if feed is not None:
            feed.offer(record)

    async def _on_reconnect(self) -> None:
        for feed in self._feeds.values():
            feed.recheck()

    def _count(self) -> None:
        metrics.SUBSCRIPTIONS.set(len(self._feeds))
        metrics.MAP_SIZE.labels(name="feeds").set(len(self._feeds))
