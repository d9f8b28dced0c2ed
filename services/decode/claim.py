"""Taking a request over: who may run it, from where it goes on, and when there is nothing left to do.

Order matters: the lease is taken first and the log read afterwards, so that nothing an earlier holder wrote is missed
and nothing it writes later can be stored. Of a request that nobody has held yet there is nothing to read but a cancel.
"""

import asyncio
from dataclasses import dataclass

from headrace.shared import runlog, subjects
from headrace.shared.attempts import history
from headrace.shared.bus import Bus, Delivery
from headrace.shared.errors import FencedError
from headrace.shared.messages import Tokenized
from headrace.shared.packing import num_packed, unpack_ids
from headrace.shared.records import ChoiceChunk, EndEvent, TextState
from headrace.shared.registry import Registry
from headrace.shared.runlog import Lease, RunLog

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a request, with what its log holds."""

    lease: Lease
    log: RunLog

    @property
    def chunks(self) -> list[ChoiceChunk]:
        """What earlier holders logged, in order."""
        return [chunk for _, record in self.log.toks for chunk in record.choices]

    @property
    def generated(self) -> list[int]:
        """Token ids in the log, in order."""
        return [token for chunk in self.chunks for token in unpack_ids(chunk.t)]

    @property
    def end(self) -> EndEvent | None:
        """The end of the choice, if an earlier holder logged it."""
        events = [event for chunk in self.chunks for event in chunk.ev]
        return next((event for event in events if isinstance(event, EndEvent)), None)

    def agrees_with(self, replayed: TextState) -> bool:
        """Whether the log is whole, and its text ends where a replay of its ids ended."""
        num_tokens = 0
        for chunk in self.chunks:
            if chunk.o != num_tokens:
                return False
            num_tokens += num_packed(chunk.t)
        return not self.chunks or self.chunks[-1].state == replayed


async def claim(bus: Bus, registry: Registry, wid: str, delivery: Delivery, item: Tokenized) -> Claim | None:
    """Take the lease; None when the request has ended or is somebody else's (the item is then only to be acked).

    Raises FencedError when the lease changes hands faster than it can be read: that proves nothing about the item.
    """
    request = item.request
    if delivery.num_delivered == 1:
        first = await _claim_first(bus, wid, delivery, item)
        if first is not None:
            return first
    for _ in range(_TRIES):
        run = await runlog.read_log(bus, request.ing, request.rid)
        if run.fin is not None or await _runs_elsewhere(bus, registry, wid, run, delivery):
            return None
        try:
            lease = await runlog.take_lease(
                bus,
                request.ing,
                request.rid,
                wid,
                attempt=history(run, lambda other: registry.get(other) is not None).attempt,
                item_seq=delivery.seq,
                expected_seq=run.lease_seq,
            )
        except FencedError:
            continue
        return await _after_lease(bus, lease, run)
    raise FencedError(f"{request.rid}: the lease changes hands too fast")


async def _claim_first(bus: Bus, wid: str, delivery: Delivery, item: Tokenized) -> Claim | None:
    """Take the first lease of a request; None when somebody has had it before.

    Everything but a cancel is written under a lease, so the server's word that there was none stands for reading the
    log. A cancel that is younger than this look comes live.
    """
    ing, rid = item.request.ing, item.request.rid
    lease, cancel = await asyncio.gather(
        runlog.take_lease(bus, ing, rid, wid, attempt=1, item_seq=delivery.seq),
        bus.last(subjects.RUN, subjects.run(ing, rid, "cancel")),
        return_exceptions=True,
    )
    if isinstance(lease, FencedError):
        return None
    if isinstance(lease, BaseException):
        raise lease
    if isinstance(cancel, BaseException):
        raise cancel
    run = RunLog()
    if cancel is not None:
        run.add(cancel)
    return Claim(lease, run)


async def _after_lease(bus: Bus, lease: Lease, run: RunLog) -> Claim | None:
    late = await runlog.read_log(bus, lease.ing, lease.rid, after=run.last_seq)
    run.toks += late.toks
    run.fin = run.fin or late.fin
    run.cancel = run.cancel or late.cancel
    return None if run.fin is not None else Claim(lease, run)


async def _runs_elsewhere(bus: Bus, registry: Registry, wid: str, run: RunLog, delivery: Delivery) -> bool:
    """Whether this is a second copy of a request that a live worker runs from an item that is still stored."""
    lease = run.lease
    if lease is None or lease.released or lease.item_seq in (0, delivery.seq) or lease.wid == wid:
        return False
    if registry.get(lease.wid) is None:
        return False
    rid = subjects.rid_of(delivery.subject)
    other = await bus.last(subjects.DECQ, subjects.dec(lease.wid, rid))
    return other is not None and other.seq == lease.item_seq
