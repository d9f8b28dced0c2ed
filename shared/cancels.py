"""Which requests were cancelled lately: live tombstones, and the log where a live one may have been missed."""

from collections import OrderedDict
from collections.abc import Callable

from headrace.shared import subjects
from headrace.shared.bus import Bus, Record, Subscription

_KEPT = 10_000


class Cancels:
    """Follows `cancel` records of all requests."""

    def __init__(self, bus: Bus, listener: Callable[[str], None] = lambda _rid: None) -> None:
        """`listener(rid)` is called for every tombstone as it arrives."""
        self._bus = bus
        self._listener = listener
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Subscribe."""
        self._subscription = await self._bus.subscribe(subjects.OUT_CANCELS, self._on_cancel)

    async def close(self) -> None:
        """Stop following; idempotent."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def __contains__(self, rid: str) -> bool:
        return rid in self._seen

    async def is_cancelled(self, ing: str, rid: str) -> bool:
        """Ask the log: sees tombstones from before this process or during a reconnect, too."""
        if rid in self._seen:
            return True
        return await self._bus.last(subjects.RUN, subjects.run(ing, rid, "cancel")) is not None

    async def _on_cancel(self, record: Record) -> None:
        _, rid, _ = subjects.run_parts(record.subject)
        self._seen[rid] = None
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
        self._listener(rid)
