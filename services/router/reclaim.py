"""Work of workers that are gone: their queued items go back to the router's queue, their consumers are removed."""

import asyncio

import msgspec
import structlog

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus, Record
from headrace.shared.errors import QueueFullError
from headrace.shared.handover import requeue
from headrace.shared.messages import Tokenized, encode
from headrace.shared.registry import Registry
from headrace.shared.reports import WorkerReport
from headrace.shared.telemetry import metrics

log = structlog.get_logger()
_decoder = msgspec.msgpack.Decoder(Tokenized)
_STREAMS = {"prefill": subjects.PREQ, "decode": subjects.DECQ}


class Reclaimer:
    """Gives every registered worker its consumer, and takes back the items of workers that are gone."""

    def __init__(self, bus: Bus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry
        self._equipped: set[str] = set()
        self._lock = asyncio.Lock()
        """A worker may come back while it is being cleared away: its new consumer must not go with the old one."""

    async def equip(self, worker: WorkerReport) -> None:
        """Make the worker's consumer; nothing to do for stages that share one."""
        if worker.stage not in _STREAMS or worker.slots < 1 or worker.wid in self._equipped:
            return
        async with self._lock:
            spec = streams.worker_consumer_spec(worker.stage, worker.wid, worker.slots)
            for line in await self._bus.ensure_consumer(spec):
                log.warning("consumer_drift", wid=worker.wid, difference=line)
            self._equipped.add(worker.wid)

    async def sweep(self) -> None:
        """Find items and consumers of unregistered workers, and workers without their consumer, whatever led there."""
        for stage, stream in _STREAMS.items():
            prefix = subjects.worker_consumer(stage, "")
            names = await self._bus.consumers(stream)
            owners = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
            self._equipped -= {worker.wid for worker in self._registry.workers(stage)} - owners
            owners |= {record.subject.split(".")[2] for record in await self._bus.read(stream, "work.>")}
            for wid in sorted(owners):
                await self.reclaim(stage, wid)
        for worker in self._registry.workers():
            await self.equip(worker)

    async def reclaim(self, stage: str, wid: str) -> None:
        """Put the items of a worker that is gone back in line and remove its consumer."""
        stream = _STREAMS.get(stage)
        if stream is None:
            return
        async with self._lock:
            if self._registry.get(wid) is not None:
                return
            self._equipped.discard(wid)
            subject = subjects.pre(wid, "*") if stage == "prefill" else subjects.dec(wid, "*")
            for record in await self._bus.read(stream, subject):
                await self._take_back(stage, wid, record)
            await self._bus.delete_consumer(stream, subjects.worker_consumer(stage, wid))

    async def _take_back(self, stage: str, wid: str, record: Record) -> None:
        """Move one item to the router's queue; one that an older copy keeps out stays for the next sweep."""
        stream = _STREAMS[stage]
        try:
            await self._give_back(stage, wid, record)
        except QueueFullError as error:
            log.warning("item_not_reclaimed", subject=record.subject, reason=str(error))
            return
        await self._bus.delete(stream, record.seq)

    async def _give_back(self, stage: str, wid: str, record: Record) -> None:
        subject, data = _returned(stage, record)
        await requeue(self._bus, subject, data, _STREAMS[stage], record)
        if stage == "decode":
            metrics.LEASE_TAKEOVERS_TOTAL.labels(reason="death").inc()
        log.info("item_reclaimed", request=subjects.rid_of(subject), wid=wid)


def _returned(stage: str, record: Record) -> tuple[str, bytes]:
    """Subject and content with which an item returns; one that cannot be read is buried by whoever fetches it."""
    rid = subjects.rid_of(record.subject)
    try:
        item = _decoder.decode(record.data)
    except (msgspec.DecodeError, RecursionError):
        return subjects.place("int", rid), record.data
    request = item.request
    if stage == "decode":
        # Deaths of decode workers are told from the run log's leases; prefill holds none.
        return subjects.place(request.cls, rid), record.data
    deaths = {**item.deaths, stage: item.deaths.get(stage, 0) + 1}
    return subjects.route(request.cls, rid), encode(msgspec.structs.replace(item, deaths=deaths))
