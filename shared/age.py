"""How old a request is, by the queue server's clock.

A worker's wall clock may be an hour off: it only raises the suspicion that something is late. The server's stamp of the
worker's own last heartbeat, at most a second old, decides.
"""

import time

from headrace.shared import subjects
from headrace.shared.bus import Bus
from headrace.shared.ids import stage_of


async def is_older(bus: Bus, wid: str, since_s: float, limit_s: float) -> bool:
    """Whether more than `limit_s` have passed since stream time `since_s` (Unix seconds)."""
    if not time.time() - since_s > limit_s:
        return False
    beat = await bus.last(subjects.WORKERS, subjects.worker_key(stage_of(wid), wid))
    return beat is not None and beat.time_s - since_s > limit_s
