"""A refusal because a copy is queued is a success only if that copy is younger than what it is made from."""

from collections.abc import AsyncIterator

import pytest

from headrace.shared import streams, subjects
from headrace.shared.bus import Bus, Record
from headrace.shared.bus.nats import connect
from headrace.shared.errors import QueueFullError
from headrace.shared.handover import is_made_from, requeue
from headrace.shared.ids import new_wid

PLACE = subjects.place("int", "r")


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.live)])
async def bus(request: pytest.FixtureRequest, bus: Bus) -> AsyncIterator[Bus]:
    """The in-memory server, and the real one: stamps, refusals and remembered ids are the server's."""
    if request.param == "memory":
        yield bus
        return
    real = await connect(request.getfixturevalue("nats_url"), name=new_wid("test"), timeout_s=10)
    assert await streams.provision(real) == []
    yield real
    for stream in (subjects.RTEQ, subjects.DECQ):
        await real.purge(stream, "work.>")
    await real.close()


async def item(bus: Bus, wid: str = "decode-1") -> Record:
    """An item in a worker's queue."""
    await bus.publish(subjects.dec(wid, "r"), b"x")
    record = await bus.last(subjects.DECQ, subjects.dec(wid, "r"))
    assert record is not None
    return record


async def test_however_often_it_is_handed_on_there_is_one_copy(bus: Bus) -> None:
    origin = await item(bus)
    await requeue(bus, PLACE, b"x", subjects.DECQ, origin)
    await requeue(bus, PLACE, b"x", subjects.DECQ, origin)
    await bus.purge(subjects.RTEQ, PLACE)  # it went its way

    await requeue(bus, PLACE, b"x", subjects.DECQ, origin)

    assert await bus.last(subjects.RTEQ, PLACE) is None


async def test_a_younger_copy_carries_the_request_on(bus: Bus) -> None:
    first, second = await item(bus, "decode-1"), await item(bus, "decode-2")
    await requeue(bus, PLACE, b"x", subjects.DECQ, first)

    await requeue(bus, PLACE, b"x", subjects.DECQ, second)

    assert len(await bus.read(subjects.RTEQ, PLACE)) == 1


async def test_an_older_copy_is_in_the_way(bus: Bus) -> None:
    await bus.publish(PLACE, b"x")
    origin = await item(bus)

    with pytest.raises(QueueFullError):
        await requeue(bus, PLACE, b"x", subjects.DECQ, origin)

    await bus.purge(subjects.RTEQ, PLACE)
    await requeue(bus, PLACE, b"x", subjects.DECQ, origin)
    assert await is_made_from(bus, subjects.RTEQ, PLACE, origin)


async def test_nothing_is_made_from_an_item_before_something_is(bus: Bus) -> None:
    assert not await is_made_from(bus, subjects.RTEQ, PLACE, await item(bus))


async def test_a_delivery_is_compared_as_the_stored_item_is(bus: Bus) -> None:
    await bus.publish(PLACE, b"x")
    (origin,) = await bus.fetch(subjects.RTEQ, "place-int", batch=1, timeout_s=5)
    assert not await is_made_from(bus, subjects.RTEQ, PLACE, origin)

    await item(bus)

    assert await is_made_from(bus, subjects.DECQ, subjects.dec("*", "r"), origin)
    await bus.ack(origin, wait=True)
