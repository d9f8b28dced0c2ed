"""Handing a request on to the router's queue so that at every moment some item answers for it.

The queue refuses a second copy of a request. Whether that refusal is a success depends on which copy is there already:
one younger than ours was made from it or beside it and goes its own way; an older one is what ours was made from, and
whoever made ours is about to remove it. Then ours must stay, or the request is lost.
"""

from headrace.shared import subjects
from headrace.shared.bus import Bus, Delivery, Record
from headrace.shared.errors import QueueFullError


async def requeue(bus: Bus, subject: str, data: bytes, stream: str, origin: Delivery | Record) -> None:
    """Put an item made from `origin` (of `stream`) in the router's queue; afterwards `origin` may be removed.

    However often this is repeated for one origin, by whomever, one copy is stored. Raises QueueFullError, also when an
    older copy is in the way: then `origin` must stay, and be handed on again later.
    """
    msg_id = f"{subjects.rid_of(subject)}:{stream}:{origin.seq}"
    try:
        await bus.publish(subject, data, msg_id=msg_id)
    except QueueFullError as error:
        if not error.duplicate or not await is_made_from(bus, subjects.RTEQ, subject, origin):
            raise


async def is_made_from(bus: Bus, stream: str, subject: str, origin: Delivery | Record) -> bool:
    """Whether the newest item of `subject` is younger than `origin`. All stamps are the queue server's."""
    copy = await bus.last(stream, subject)
    return copy is not None and copy.time_s > origin.time_s
