"""Work items that could not be worked on: tried again later, or kept with the reason in DLQ and their request ended.

The one place that answers for an item whose handler failed, so that no item is tried for ever and none is forgotten.
"""

import traceback
from typing import Protocol, TypeVar

import msgspec
import structlog

from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.errors import BusError, Code, Failure
from headrace.shared.ids import is_rid, is_subject_token, stage_of
from headrace.shared.messages import Request, encode
from headrace.shared.records import DeadLetter, FinRecord, LeaseRecord
from headrace.shared.telemetry import metrics


class Item(Protocol):
    """A work item of any kind."""

    @property
    def request(self) -> Request:
        """The request it carries."""


T = TypeVar("T", bound=Item)
log = structlog.get_logger()

UNDECODABLE = Failure(code=Code.INTERNAL, message="the work item cannot be decoded")
MISPLACED = Failure(code=Code.INVALID_REQUEST, message="request id, reply id or class do not fit the item's subject")
_BROKEN = Failure(code=Code.INTERNAL, message="the request was given up after several failed attempts to work on it")

MAX_DELIVER = 20
"""After this many deliveries the server hands an item to nobody any more: whoever holds the last one must answer."""
_MOST_BREAKS = 3
"""A handler that breaks is wrong about the item, so that more tries help little."""
_BUG_DELAY_S = 0.5
_AWAY_DELAY_S = 2.0
_LONGEST_DELAY_S = 30.0


async def answer_failure(bus: Bus, wid: str, delivery: Delivery, error: Exception) -> None:
    """Answer for an item whose handler raised: once more after a while or, when that is hopeless, given up."""
    if isinstance(error, BusError):
        log.warning("item_failed", subject=delivery.subject, reason=str(error))
    else:
        _log_bug(delivery, error)
        metrics.ITEM_FAILURES_TOTAL.labels(stage=stage_of(wid)).inc()
    try:
        if is_hopeless(error, delivery.num_delivered):
            await give_up(bus, wid, delivery, _BROKEN, attempts=delivery.num_delivered)
        else:
            await bus.nak(delivery, delay_s=retry_delay_s(error, delivery.num_delivered))
    except BusError as unanswered:
        log.warning("item_left_to_redelivery", subject=delivery.subject, reason=str(unanswered))


def is_hopeless(error: Exception, num_delivered: int) -> bool:
    """Whether the delivery that failed with `error` was the last one worth it."""
    return num_delivered >= (MAX_DELIVER if isinstance(error, BusError) else _MOST_BREAKS)


def retry_delay_s(error: Exception, num_delivered: int) -> float:
    """Seconds until an item is tried again: doubling, so that `MAX_DELIVER` tries outlast minutes of trouble."""
    first = _AWAY_DELAY_S if isinstance(error, BusError) else _BUG_DELAY_S
    return min(_LONGEST_DELAY_S, first * 2.0 ** (num_delivered - 1))


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
    subject = subjects.dead_letter(stage, subjects.rid_of(delivery.subject))
    await bus.publish(subject, encode(letter), msg_id=f"{delivery.stream}:{delivery.seq}:{delivery.subject}")
    metrics.DLQ_TOTAL.labels(stage=stage).inc()


async def give_up(bus: Bus, wid: str, delivery: Delivery, failure: Failure, *, attempts: int = 0) -> None:
    """Bury the item, end its request where one is known, remove the item. Raises BusError: then it is still queued."""
    await bury(bus, wid, delivery, failure, attempts=attempts)
    await _end_request(bus, wid, delivery, failure)
    await bus.term(delivery, failure.code)


async def decode_or_bury(bus: Bus, wid: str, delivery: Delivery, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Decode an item; one that cannot be decoded is given up, and None returned. So is one in the wrong place.

    Anybody with the right to publish may write an item, so nothing in it may shape a subject unchecked.
    """
    try:
        item = decoder.decode(delivery.data)
    except (msgspec.DecodeError, RecursionError) as error:
        # Not its message: that quotes the item.
        log.warning("item_undecodable", subject=delivery.subject, error=type(error).__name__)
        await give_up(bus, wid, delivery, UNDECODABLE)
        return None
    if is_in_place(item.request, delivery.subject):
        return item
    log.warning("item_misplaced", subject=delivery.subject)
    await bury(bus, wid, delivery, MISPLACED)
    await bus.term(delivery, "misplaced")
    return None


def is_in_place(request: Request, subject: str) -> bool:
    """Whether ids and class are well-formed and those of the item's subject."""
    _, queue, owner, rid = subject.split(".", 3)
    is_own_class = queue in {"pre", "dec"} or owner == request.cls
    return is_own_class and rid == request.rid and is_rid(rid) and is_subject_token(request.ing)


async def _end_request(bus: Bus, wid: str, delivery: Delivery, failure: Failure) -> None:
    """The request id stands in the subject, so that this needs no readable item."""
    rid = subjects.rid_of(delivery.subject)
    req = await bus.last(subjects.RUN, subjects.run("*", rid, "req")) if is_rid(rid) else None
    if req is None:
        return
    ing, _, _ = subjects.run_parts(req.subject)
    try:
        run = await runlog.read_log(bus, ing, rid)
    except msgspec.DecodeError as error:
        log.error("run_log_unreadable", request=rid, error=type(error).__name__)  # noqa: TRY400  # its text quotes values
        return
    if run.fin is not None or _is_of_another(run.lease, wid, delivery):
        return
    attempts = 1 if run.lease is None else run.lease.attempt
    fin = FinRecord(failure=failure, attempts=attempts, choices=runlog.summary(run), prompt=run.prompt)
    ended = await runlog.end(bus, ing, rid, wid, fin, over=run.lease_seq)
    log.info("request_ended", request=rid, code=failure.code, ended=ended)


def _is_of_another(lease: LeaseRecord | None, wid: str, delivery: Delivery) -> bool:
    """Whether another worker has the request, from an item of its own that answers for it."""
    if lease is None or lease.released or lease.wid == wid:
        return False
    return lease.item_seq not in {0, delivery.seq}


def _log_bug(delivery: Delivery, error: Exception) -> None:
    """Log where, not what: the message of an unexpected error can hold prompt text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.error("item_broken", subject=delivery.subject, error=type(error).__name__, where=where)
