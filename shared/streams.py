"""Every stream and consumer of the system with its limits, and the one provisioner that creates or compares them.

Byte limits are reservations of the server's disk budget, so they must fit together inside `nats.max_file_store_bytes`.
Consumers of single workers come and go with the workers; they are made from `worker_consumer_spec`, never compared.
"""

from headrace.shared import subjects
from headrace.shared.bus import Bus, ConsumerSpec, StreamSpec

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S

MAX_ITEM_BYTES = 4 * _MIB
"""Largest work item or log record. A body of 2 MiB becomes at most 2 MiB of text plus options, and a million prompt
tokens in packed form take 4 MiB. RUN needs as much: a `req` record carries its dialect's render options, such as tool
schemas that are echoed to the caller, which may fill most of a body. Writers of `tok` stay far below this."""
_ENVELOPE_BYTES = 64 * _KIB
"""What a dead letter adds to the item it holds."""
_MAX_QUEUED = 5000
_QUEUE_BYTES = 512 * _MIB
_WORKER_ACK_WAIT_S = 10.0


def _queue(name: str, *patterns: str) -> StreamSpec:
    return StreamSpec(
        name,
        patterns,
        work_queue=True,
        max_msgs=_MAX_QUEUED,
        max_bytes=_QUEUE_BYTES,
        max_age_s=_HOUR_S,
        max_msg_bytes=MAX_ITEM_BYTES,
    )


STREAMS: tuple[StreamSpec, ...] = (
    _queue(subjects.TOKQ, "work.tok.>"),
    _queue(subjects.RTEQ, "work.route.>", "work.place.>"),
    _queue(subjects.PREQ, "work.pre.>"),
    _queue(subjects.DECQ, "work.dec.>"),
    # No limit per subject: it would cut the beginning off a running request's log.
    StreamSpec(
        subjects.RUN,
        ("run.>",),
        max_bytes=2 * _GIB,
        max_age_s=_HOUR_S / 2,
        max_msg_bytes=MAX_ITEM_BYTES,
        republish=("run.>", "out.>"),
        allow_ttl=True,
        dedup_s=300.0,
    ),
    StreamSpec(
        subjects.WORKERS,
        ("$KV.WORKERS.>",),
        max_bytes=16 * _MIB,
        max_msg_bytes=64 * _KIB,
        max_per_subject=1,
        republish=("$KV.WORKERS.>", "reg.>"),
        allow_ttl=True,
        marker_ttl_s=60.0,
    ),
    StreamSpec(
        subjects.IDEM,
        ("$KV.IDEM.>",),
        max_bytes=128 * _MIB,
        max_age_s=_DAY_S,
        max_msg_bytes=64 * _KIB,
        max_per_subject=1,
    ),
    StreamSpec(subjects.CONF, ("$KV.CONF.>",), max_bytes=16 * _MIB, max_msg_bytes=_MIB, max_per_subject=10),
    StreamSpec(
        subjects.DLQ,
        ("dlq.>",),
        max_bytes=_GIB,
        max_age_s=14 * _DAY_S,
        max_msg_bytes=MAX_ITEM_BYTES + _ENVELOPE_BYTES,
    ),
    # Exactly these three: a wider pattern would also store one record per API call.
    StreamSpec(
        subjects.ADV,
        (
            "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
            "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
            "$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.>",
        ),
        max_bytes=100 * _MIB,
        max_age_s=_DAY_S,
    ),
)


def _tokenize_consumer(cls: str) -> ConsumerSpec:
    return ConsumerSpec(
        subjects.TOKQ, f"tok-{cls}", f"work.tok.{cls}.>", ack_wait_s=5.0, max_ack_pending=1024, max_waiting=512
    )


def _router_consumer(kind: str, cls: str) -> ConsumerSpec:
    return ConsumerSpec(
        subjects.RTEQ, f"{kind}-{cls}", f"work.{kind}.{cls}.>", ack_wait_s=2.0, max_ack_pending=256, max_waiting=64
    )


CONSUMERS: tuple[ConsumerSpec, ...] = (
    *(_tokenize_consumer(cls) for cls in subjects.CLASSES),
    *(_router_consumer(kind, cls) for kind in ("route", "place") for cls in subjects.CLASSES),
)


def worker_consumer_spec(stage: str, wid: str, slots: int) -> ConsumerSpec:
    """The consumer of one prefill or decode worker that holds at most `slots` items at once."""
    is_prefill = stage == "prefill"
    return ConsumerSpec(
        subjects.PREQ if is_prefill else subjects.DECQ,
        subjects.worker_consumer(stage, wid),
        subjects.pre(wid, ">") if is_prefill else subjects.dec(wid, ">"),
        ack_wait_s=_WORKER_ACK_WAIT_S,
        max_ack_pending=slots,
        max_waiting=8,
    )


async def provision(bus: Bus) -> list[str]:
    """Create what is missing; returns one line for every field of an existing stream or consumer that differs."""
    lines: list[str] = []
    for stream in STREAMS:
        lines += await bus.ensure_stream(stream)
    for consumer in CONSUMERS:
        lines += await bus.ensure_consumer(consumer)
    return lines


async def check(bus: Bus) -> list[str]:
    """Compare without creating; returns one line for everything that is missing or differs."""
    lines: list[str] = []
    for stream in STREAMS:
        lines += await bus.check_stream(stream)
    for consumer in CONSUMERS:
        if await bus.consumer_exists(consumer.stream, consumer.name):
            lines += await bus.ensure_consumer(consumer)
        else:
            lines.append(f"consumer {consumer.stream}/{consumer.name}: missing")
    return lines
