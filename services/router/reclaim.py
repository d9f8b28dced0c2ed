"""Work of workers that are gone: their queued items go back to the router's queue, their consumers are removed."""

import msgspec
import structlog

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus, Record
from headrace.shared.errors import QueueFullError
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

    async def equip(self, worker: WorkerReport) -> None:
        """Make the worker's consumer; nothing to do for stages that share one."""
        if worker.stage not in _STREAMS or worker.slots < 1 or worker.wid in self._equipped:
            return
        spec = streams.worker_consumer_spec(worker.stage, worker.wid, worker.slots)
        for line in await self._bus.ensure_consumer(spec):
            log.warning("consumer_drift", wid=worker.wid, difference=line)
        self._equipped.add(worker.wid)

    async def sweep(self) -> None:
        """Find items and consumers of unregistered workers, whatever made them miss their own event."""
        for stage, stream in _STREAMS.items():
            prefix = subjects.worker_consumer(stage, "")
            names = await self._bus.consumers(stream)
            owners = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
            owners |= {record.subject.split(".")[2] for record in await self._bus.read(stream, "work.>")}
            for wid in sorted(owners):
                if self._registry.get(wid) is None:
                    await self.reclaim(stage, wid)
        for worker in self._registry.workers():
            await self.equip(worker)

    async def reclaim(self, stage: str, wid: str) -> None:
        """Put the items of a worker that is gone back in line and remove its consumer."""
        stream = _STREAMS.get(stage)
        if stream is None:
            return
        self._equipped.discard(wid)
        subject = subjects.pre(wid, "*") if stage == "prefill" else subjects.dec(wid, "*")
        for record in await self._bus.read(stream, subject):
            await self._give_back(stage, wid, record)
            await self._bus.delete(stream, record.seq)
        await self._bus.delete_consumer(stream, subjects.worker_consumer(stage, wid))

    async def _give_back(self, stage: str, wid: str, record: Record) -> None:
        try:
            item = _decoder.decode(record.data)
        except msgspec.DecodeError as error:
            log.error("item_undecodable", subject=record.subject, reason=str(error))  # noqa: TRY400  # the reason says it all
            return
        if stage == "prefill":
            # Deaths of decode workers are told from the run log's leases; prefill holds none.
            item = msgspec.structs.replace(item, deaths={**item.deaths, stage: item.deaths.get(stage, 0) + 1})
        request = item.request
        subject = subjects.route(request.cls, request.rid)
        if stage == "decode":
            subject = subjects.place(request.cls, request.rid)
            metrics.LEASE_TAKEOVERS_TOTAL.labels(reason="death").inc()
        try:
            await self._bus.publish(subject, encode(item), msg_id=f"{request.rid}:{_STREAMS[stage]}:{record.seq}")
        except QueueFullError as error:
            if not error.duplicate:
                raise
        log.info("item_reclaimed", request=request.rid, wid=wid)
