"""Ending a request that no worker runs: lease and `fin` as everybody else, then its work items are removed."""

import asyncio

from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus
from headrace.shared.errors import Failure
from headrace.shared.records import FinRecord


async def end_unrun(bus: Bus, ing: str, rid: str, by: str, failure: Failure) -> bool:
    """End the request of ingress `ing`; False when somebody runs it or has ended it. Raises BusError."""
    if not await runlog.end(bus, ing, rid, by, FinRecord(failure=failure)):
        return False
    await purge_work(bus, rid)
    return True


async def purge_work(bus: Bus, rid: str) -> None:
    """Remove the request's items from every queue; only after its end is in the log."""
    await asyncio.gather(
        bus.purge(subjects.TOKQ, f"work.tok.*.{rid}"),
        bus.purge(subjects.RTEQ, f"work.route.*.{rid}"),
        bus.purge(subjects.RTEQ, f"work.place.*.{rid}"),
        bus.purge(subjects.PREQ, subjects.pre("*", rid)),
        bus.purge(subjects.DECQ, subjects.dec("*", rid)),
    )
