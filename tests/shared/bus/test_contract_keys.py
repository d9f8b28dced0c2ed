"""Streams used as keys with values: one value kept, lives, markers; the same on every bus."""

import pytest

from headrace.shared.bus import Bus
from headrace.shared.errors import BusError


async def test_key_keeps_its_newest_values(bus: Bus, places) -> None:
    await places.add_stream(max_per_subject=1)
    await bus.publish(places.subject("k1"), b"1")
    await bus.publish(places.subject("k2"), b"1")
    await bus.publish(places.subject("k1"), b"2")

    assert [record.data for record in await bus.read(places.stream, places.subject("*"))] == [b"1", b"2"]


async def test_expired_key_leaves_a_republished_marker(bus: Bus, places, heard) -> None:
    await places.add_stream(
        max_per_subject=1,
        allow_ttl=True,
        marker_ttl_s=60.0,
        republish=(places.subject(">"), f"reg{places.root}.>"),
    )
    await bus.subscribe(f"reg{places.root}.>", heard)
    seq = await bus.publish(places.subject("w", "1"), b"alive", ttl_s=1.0)

    live, marker = await heard.wait_for(2)

    assert (live.subject, live.data, live.seq, live.prev) == (f"reg{places.root}.w.1", b"alive", seq, 0)
    assert (marker.subject, marker.data, marker.reason, marker.prev) == (live.subject, b"", "MaxAge", seq)
    stored = await bus.last(places.stream, places.subject("w", "1"))
    assert stored is not None
    assert (stored.data, stored.reason, stored.seq) == (b"", "MaxAge", marker.seq)


async def test_renewed_key_does_not_expire(bus: Bus, places, heard) -> None:
    await places.add_stream(
        max_per_subject=1, allow_ttl=True, marker_ttl_s=60.0, republish=(places.subject(">"), f"reg{places.root}.>")
    )
    await bus.subscribe(f"reg{places.root}.>", heard)
    await bus.publish(places.subject("other"), b"x", ttl_s=1.0)
    await bus.publish(places.subject("kept"), b"1", ttl_s=1.0)
    await bus.publish(places.subject("kept"), b"2", ttl_s=60.0)

    records = await heard.wait_for(4)

    assert records[-1].subject == f"reg{places.root}.other"
    kept = await bus.last(places.stream, places.subject("kept"))
    assert kept is not None
    assert kept.data == b"2"


@pytest.mark.parametrize(("allow", "ttl_s"), [(False, 2.0), (True, 0.5)])
async def test_impossible_ttl_is_refused(bus: Bus, places, allow: bool, ttl_s: float) -> None:
    await places.add_stream(allow_ttl=allow)

    with pytest.raises(BusError, match="TTL"):
        await bus.publish(places.subject("a"), b"x", ttl_s=ttl_s)


async def test_removal_is_silent(bus: Bus, places, heard) -> None:
    """Only expiry leaves a marker: who removes a key must tell its watchers in another way."""
    await places.add_stream(
        max_per_subject=1, allow_ttl=True, marker_ttl_s=60.0, republish=(places.subject(">"), f"reg{places.root}.>")
    )
    await bus.subscribe(f"reg{places.root}.>", heard)
    seq = await bus.publish(places.subject("k1"), b"x")
    await bus.publish(places.subject("k2"), b"x")

    await bus.delete(places.stream, seq)
    await bus.purge(places.stream, places.subject("k2"))
    await bus.publish(places.subject("k3"), b"x")

    records = await heard.wait_for(3)
    assert [record.subject.rpartition(".")[2] for record in records] == ["k1", "k2", "k3"]
    assert await bus.last(places.stream, places.subject("k1")) is None
