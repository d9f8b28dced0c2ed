"""Who is alive: a live view of the worker registry, and the heartbeat that keeps one worker in it.

The server's time to live decides about death, not a local clock: a key that expires is republished as a marker, and a
full re-read every few seconds and after each reconnect repairs whatever a lost message left behind.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from headrace.shared import subjects
from headrace.shared.bus import Bus, Record, Subscription
from headrace.shared.errors import BusError
from headrace.shared.ids import is_wid
from headrace.shared.messages import encode
from headrace.shared.reports import ModelReport, State, WorkerReport

TTL_S = 3.0
"""Life of one heartbeat."""
BEAT_S = 1.0
_TOGETHER_S = 0.05
"""Changes within this time go out together."""
_REREAD_S = 10.0
_SETTLE_S = 3.0
"""After a reconnect nobody is declared gone for this long: the server may have expired keys while it was away."""

Listener = Callable[[str, WorkerReport | None], None]

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(WorkerReport)


class Registry:
    """A live view of all workers."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._workers: dict[str, WorkerReport] = {}
        self._ready_at: dict[str, float] = {}
        self._listeners: list[Listener] = []
        self._settled_at = 0.0
        self._subscription: Subscription | None = None
        self._reread: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe, read everything once, keep both going."""
        self._subscription = await self._bus.subscribe(subjects.REGISTRY_UPDATES, self._on_update)
        self._bus.on_reconnect(self._on_reconnect)
        await self.refresh()
        self._reread = asyncio.create_task(self._refresh_for_ever())

    async def close(self) -> None:
        """Stop following; idempotent."""
        if self._reread is not None:
            self._reread.cancel()
            await asyncio.gather(self._reread, return_exceptions=True)
            self._reread = None
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def workers(self, stage: str | None = None) -> list[WorkerReport]:
        """Live workers in any state, oldest first."""
        found = [worker for worker in self._workers.values() if stage in (None, worker.stage)]
        return sorted(found, key=lambda worker: (worker.started_ms, worker.wid))

    def ready(self, stage: str) -> list[WorkerReport]:
        """Workers of a stage that take work."""
        return [worker for worker in self.workers(stage) if worker.state is State.READY]

    def get(self, wid: str) -> WorkerReport | None:
        """One worker, or None when it is gone."""
        return self._workers.get(wid)

    def seen_within(self, stage: str, seconds: float) -> bool:
        """Whether a ready worker of the stage is there, or was within the last `seconds`."""
        if self.ready(stage):
            return True
        return self._clock() - self._ready_at.get(stage, float("-inf")) <= seconds

    def models(self) -> list[ModelReport]:
        """Models that a ready tokenize worker and a ready decode worker serve, in serving order."""
        decodable = {model.name for worker in self.ready("decode") for model in worker.models}
        found: dict[str, ModelReport] = {}
        for worker in self.ready("tokenize"):
            for model in worker.models:
                if model.name in decodable:
                    found.setdefault(model.name, model)
        return list(found.values())

    def on_change(self, listener: Listener) -> None:
        """Call `listener(wid, report)` on every change, with None when the worker is gone."""
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Re-read the whole registry. Whoever was heard of meanwhile is left alone: that news is younger."""
        before = dict(self._workers)
        records = await self._bus.read(subjects.WORKERS, "$KV.WORKERS.>")
        alive = {subjects.rid_of(record.subject): record for record in records if _is_report(record)}
        for wid in before.keys() | alive.keys():
            if self._workers.get(wid) is not before.get(wid):
                continue
            if wid in alive:
                self._put(alive[wid])
            else:
                self._drop(wid)

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_REREAD_S)
            try:
                await self.refresh()
            except BusError as error:
                log.warning("registry_unreadable", reason=str(error))
            except Exception:  # a listener that breaks must not freeze everybody's view
                log.exception("registry_listener_failed")

    async def _on_reconnect(self) -> None:
        self._settled_at = self._clock() + _SETTLE_S

    async def _on_update(self, record: Record) -> None:
        wid = subjects.rid_of(record.subject)
        if _is_report(record):
            self._put(record)
        else:
            self._drop(wid, is_told=record.reason is None)

    def _put(self, record: Record) -> None:
        """Take an entry in; one that does not speak for its own key is nobody's."""
        stage, wid = record.subject.split(".")[-2:]
        try:
            report = _decoder.decode(record.data)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("registry_entry_unreadable", error=type(error).__name__)
            return
        if (report.stage, report.wid) != (stage, wid) or not is_wid(wid):
            log.warning("registry_entry_misplaced", key_length=len(wid))
            return
        if report.state is State.READY:
            self._ready_at[report.stage] = self._clock()
        if self._workers.get(wid) != report:
            self._workers[wid] = report
            self._tell(wid, report)

    def _drop(self, wid: str, *, is_told: bool = False) -> None:
        """`is_told`: somebody said so, rather than the server's time to live."""
        if self._clock() < self._settled_at and not is_told:
            return
        gone = self._workers.pop(wid, None)
        if gone is not None:
            if gone.state is State.READY:
                self._ready_at[gone.stage] = self._clock()
            self._tell(wid, None)

    def _tell(self, wid: str, report: WorkerReport | None) -> None:
        for listener in self._listeners:
            listener(wid, report)


class Heartbeat:
    """Keeps one worker in the registry: every second, and at once after `touch`."""

    def __init__(self, bus: Bus, report: Callable[[], WorkerReport | None]) -> None:
        """`report` gives the current report, or None to skip this beat (a worker that makes no progress)."""
        self._bus = bus
        self._report = report
        self._sent: WorkerReport | None = None
        self._sent_at = 0.0
        self._touched = asyncio.Event()

    def touch(self) -> None:
        """Report at once, or 20 ms after the last time: whom the router hears of late, it takes for busy."""
        self._touched.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            try:
                # Not wait_for: before Python 3.12 it swallows a cancel that arrives together with the event.
                async with asyncio.timeout(BEAT_S):
                    await self._touched.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, self._sent_at + _TOGETHER_S - time.monotonic()))
            self._touched.clear()

    async def beat(self) -> None:
        """Report once; a failure shows in the log and is repaired by the next beat."""
        report = self._report()
        if report is None:
            return
        self._sent, self._sent_at = report, time.monotonic()
        key = subjects.worker_key(report.stage, report.wid)
        try:
            await self._bus.publish(key, encode(report), ttl_s=TTL_S, deadline_s=2.0)
        except BusError as error:
            log.warning("heartbeat_lost", reason=str(error))

    async def withdraw(self) -> None:
        """Leave the registry at once, all the more when there is no progress to report any more."""
        if self._sent is not None:
            await forget(self._bus, self._sent.stage, self._sent.wid)


def _is_report(record: Record) -> bool:
    """Whether a record is a heartbeat rather than the marker of one that is gone."""
    return bool(record.data) and record.reason is None


async def forget(bus: Bus, stage: str, wid: str) -> None:
    """Remove a worker from the registry and tell everyone."""
    try:
        await bus.purge(subjects.WORKERS, subjects.worker_key(stage, wid))
        await bus.emit(f"reg.{stage}.{wid}", b"")
    except BusError as error:
        log.warning("registry_entry_kept", wid=wid, reason=str(error))
