"""The streams and consumers of the system: they fit together, and provisioning is idempotent and honest."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.bus.nats import connect
from headrace.shared.config import Config

RID = "01hzz0000000000000000000000"[:26]


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.live)])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A connection to an empty server."""
    if request.param == "memory":
        bus: Bus = MemoryServer().connect()
    else:
        bus = await connect(request.getfixturevalue("start_nats")().url, name="test", timeout_s=5)
    yield bus
    await bus.close()


async def test_check_names_everything_missing_and_creates_nothing(bus: Bus) -> None:
    expected = [f"stream {spec.name}: missing" for spec in streams.STREAMS]
    expected += [f"consumer {spec.stream}/{spec.name}: missing" for spec in streams.CONSUMERS]

    assert await streams.check(bus) == expected
    assert await streams.check(bus) == expected


async def test_provisioning_is_idempotent(bus: Bus) -> None:
    assert await streams.provision(bus) == []
    assert await streams.provision(bus) == []
    assert await streams.check(bus) == []


async def test_drift_is_reported_and_left_alone(bus: Bus) -> None:
    run = next(spec for spec in streams.STREAMS if spec.name == subjects.RUN)
    await bus.ensure_stream(replace(run, max_age_s=600.0))
    await bus.ensure_stream(next(spec for spec in streams.STREAMS if spec.name == subjects.TOKQ))
    await bus.ensure_consumer(replace(streams.CONSUMERS[0], ack_wait_s=9.0))

    expected = ["stream RUN: max_age_s is 600, expected 1800", "consumer TOKQ/tok-int: ack_wait_s is 9, expected 5"]
    assert await streams.provision(bus) == expected
    assert await streams.check(bus) == expected


async def test_every_subject_has_its_stream_and_consumer(bus: Bus) -> None:
    await streams.provision(bus)
    for stage, wid in (("prefill", "prefill-1"), ("decode", "decode-1")):
        assert await bus.ensure_consumer(streams.worker_consumer_spec(stage, wid, slots=4)) == []
    homes = {
        subjects.tok("int", RID): (subjects.TOKQ, "tok-int"),
        subjects.tok("bat", RID): (subjects.TOKQ, "tok-bat"),
        subjects.route("int", RID): (subjects.RTEQ, "route-int"),
        subjects.route("bat", RID): (subjects.RTEQ, "route-bat"),
        subjects.place("int", RID): (subjects.RTEQ, "place-int"),
        subjects.place("bat", RID): (subjects.RTEQ, "place-bat"),
        subjects.pre("prefill-1", RID): (subjects.PREQ, "pre-prefill-1"),
        subjects.dec("decode-1", RID): (subjects.DECQ, "dec-decode-1"),
    }

    for subject, (stream, consumer) in homes.items():
        await bus.publish(subject, b"x")
        (item,) = await bus.fetch(stream, consumer, batch=4, timeout_s=2)
        assert item.subject == subject


async def test_logs_keys_and_dead_letters_have_their_stream(bus: Bus) -> None:
    await streams.provision(bus)
    homes = {
        subjects.run("ingress-1", RID, "req"): subjects.RUN,
        subjects.worker_key("decode", "decode-1"): subjects.WORKERS,
        "$KV.IDEM.tenant.key": subjects.IDEM,
        "$KV.CONF.routes": subjects.CONF,
        subjects.dead_letter("decode", RID): subjects.DLQ,
    }

    for subject, stream in homes.items():
        await bus.publish(subject, b"x")
        assert await bus.last(stream, subject) is not None


async def test_largest_body_fits_into_every_queue_and_the_log(bus: Bus) -> None:
    await streams.provision(bus)
    body = b"x" * (Config().limits.max_body_bytes + (64 << 10))

    for subject in (
        subjects.tok("int", RID),
        subjects.route("int", RID),
        subjects.pre("w", RID),
        subjects.dec("w", RID),
        subjects.run("i", RID, "req"),
        subjects.dead_letter("decode", RID),
    ):
        assert await bus.publish(subject, body) > 0


def test_reservations_fit_the_default_disk_budget_with_room_for_batch_jobs() -> None:
    reserved = sum(spec.max_bytes for spec in streams.STREAMS)

    assert all(spec.max_bytes for spec in streams.STREAMS)
    assert reserved + (2 << 30) <= Config().nats.max_file_store_bytes


def test_worker_consumer_holds_no_more_than_its_slots() -> None:
    prefill = streams.worker_consumer_spec("prefill", "prefill-1", slots=4)
    decode = streams.worker_consumer_spec("decode", "decode-1", slots=32)

    assert (prefill.stream, prefill.name, prefill.filter) == ("PREQ", "pre-prefill-1", "work.pre.prefill-1.>")
    assert (decode.stream, decode.name, decode.filter) == ("DECQ", "dec-decode-1", "work.dec.decode-1.>")
    assert (prefill.max_ack_pending, decode.max_ack_pending) == (4, 32)
    assert (prefill.ack_wait_s, prefill.max_waiting) == (10.0, 8)
