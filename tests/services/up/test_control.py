"""Orders from the queue: carried out or refused in words, whatever bytes come."""

import msgspec
import pytest

from headrace.shared.messages import encode
from headrace.shared.reports import ControlReply, DrainRequest, ScaleRequest
from headrace.up.control import drain_responder, scale_responder


async def _ask(responder, data: bytes) -> ControlReply:
    return msgspec.msgpack.decode(await responder(data), type=ControlReply)


async def test_scaling_and_draining(yard, fleet):
    scaled = await _ask(scale_responder(fleet), encode(ScaleRequest(stages={"decode": 2})))
    await yard.all_up(2)
    drained = await _ask(drain_responder(fleet), encode(DrainRequest(wid=yard.started[0].wid)))

    assert scaled == drained == ControlReply(status="ok")
    assert fleet.wanted["decode"] == 1


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", encode(ScaleRequest(stages={"nats": 1}))])
async def test_an_order_that_makes_no_sense_is_refused(fleet, data):
    reply = await _ask(scale_responder(fleet), data)

    assert reply.status == "refused"
    assert reply.message


@pytest.mark.parametrize("data", [b"", encode(DrainRequest(wid="decode-none"))])
async def test_a_drain_of_nobody_is_refused(fleet, data):
    assert (await _ask(drain_responder(fleet), data)).status == "refused"
