"""Streams and consumers in JetStream's wire form: nanoseconds, -1 for no limit, one flag per nuance."""

from typing import Any

import msgspec

from headrace.shared.bus import ConsumerSpec, StreamSpec

_NS = 1_000_000_000


class _Republish(msgspec.Struct, frozen=True):
    src: str = ""
    dest: str = ""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a stream's configuration that a spec speaks of."""

    subjects: list[str] = []
    retention: str = "limits"
    discard: str = "old"
    discard_new_per_subject: bool = False
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msg_size: int = -1
    max_msgs_per_subject: int = -1
    republish: _Republish | None = None
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: int = 0
    duplicate_window: int = 0


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a consumer's configuration that a spec speaks of."""

    filter_subject: str = ""
    ack_wait: int = 0
    max_deliver: int = -1
    max_ack_pending: int = 0
    max_waiting: int = 0


def stream_config(spec: StreamSpec) -> dict[str, Any]:
    """Body of STREAM.CREATE."""
    config: dict[str, Any] = {
        "name": spec.name,
        "subjects": spec.subjects,
        "storage": "file",
        "num_replicas": 1,
        "retention": "workqueue" if spec.work_queue else "limits",
        "discard": "new" if spec.work_queue else "old",
        "discard_new_per_subject": spec.work_queue,
        "max_msgs_per_subject": 1 if spec.work_queue else spec.max_per_subject or -1,
        "max_msgs": spec.max_msgs or -1,
        "max_bytes": spec.max_bytes or -1,
        "max_msg_size": spec.max_msg_bytes or -1,
        "max_age": int(spec.max_age_s * _NS),
        "duplicate_window": int(spec.dedup_s * _NS),
        "allow_direct": True,
        "allow_msg_ttl": spec.allow_ttl,
        "subject_delete_marker_ttl": int(spec.marker_ttl_s * _NS),
    }
    if spec.republish is not None:
        config["republish"] = {"src": spec.republish[0], "dest": spec.republish[1]}
    return config


def stream_spec(name: str, config: StreamConfig) -> StreamSpec:
    """What the server says of a stream, in our words."""
    is_queue = config.retention == "workqueue" and config.discard == "new" and config.discard_new_per_subject
    return StreamSpec(
        name=name,
        subjects=tuple(config.subjects),
        work_queue=is_queue,
        max_msgs=max(config.max_msgs, 0),
        max_bytes=max(config.max_bytes, 0),
        max_age_s=config.max_age / _NS,
        max_msg_bytes=max(config.max_msg_size, 0),
        max_per_subject=max(config.max_msgs_per_subject, 0),
        republish=(config.republish.src, config.republish.dest) if config.republish else None,
        allow_ttl=config.allow_msg_ttl,
        marker_ttl_s=config.subject_delete_marker_ttl / _NS,
        dedup_s=config.duplicate_window / _NS,
    )


def consumer_request(spec: ConsumerSpec) -> dict[str, Any]:
    """Body of CONSUMER.CREATE."""
    config = {
        "durable_name": spec.name,
        "name": spec.name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "filter_subject": spec.filter,
        "ack_wait": int(spec.ack_wait_s * _NS),
        "max_deliver": spec.max_deliver,
        "max_ack_pending": spec.max_ack_pending,
        "max_waiting": spec.max_waiting,
    }
    return {"stream_name": spec.stream, "action": "create", "config": config}


def consumer_spec(stream: str, name: str, config: ConsumerConfig) -> ConsumerSpec:
    """What the server says of a consumer, in our words."""
    return ConsumerSpec(
        stream=stream,
        name=name,
        filter=config.filter_subject,
        ack_wait_s=config.ack_wait / _NS,
        max_ack_pending=config.max_ack_pending,
        max_deliver=config.max_deliver,
        max_waiting=config.max_waiting,
    )
