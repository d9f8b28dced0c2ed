"""Work items that cannot be worked on: kept with the reason in DLQ, removed from their queue."""

from typing import TypeVar

import msgspec
import structlog

from headrace.shared import subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.errors import Code, Failure
from headrace.shared.ids import stage_of
from headrace.shared.messages import encode
from headrace.shared.records import DeadLetter
from headrace.shared.telemetry import metrics

T = TypeVar("T")
log = structlog.get_logger()

UNDECODABLE = Failure(code=Code.INTERNAL, message="the work item cannot be decoded")


async def bury(bus: Bus, wid: str, delivery: Delivery, failure: Failure, *, attempts: int = 0) -> None:
    """Keep the item in the dead-letter stream; the caller still removes it from its queue."""
    stage = stage_of(wid)
    letter = DeadLetter(
        stage=stage,
        subject=delivery.subject,
        failure=failure,
        payload=delivery.data,
        attempts=attempts,
        wid=wid,
    )
    await bus.publish(subjects.dead_letter(stage, subjects.rid_of(delivery.subject)), encode(letter))
    metrics.DLQ_TOTAL.labels(stage=stage).inc()


async def decode_or_bury(bus: Bus, wid: str, delivery: Delivery, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Decode an item; one that cannot be decoded is buried and removed, and None returned."""
    try:
        return decoder.decode(delivery.data)
    except (msgspec.DecodeError, RecursionError) as error:
        log.warning("item_undecodable", subject=delivery.subject, reason=str(error))
        await bury(bus, wid, delivery, UNDECODABLE)
        await bus.term(delivery, "undecodable")
        return None
