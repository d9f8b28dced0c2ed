"""Control requests from the queue: scale stages, drain a worker. Knows the fleet and two subjects."""

import msgspec

from headrace.shared import subjects
from headrace.shared.bus import Bus, Responder, Subscription
from headrace.shared.errors import ConfigError
from headrace.shared.messages import encode
from headrace.shared.reports import ControlReply, DrainRequest, ScaleRequest
from headrace.up.fleet import Fleet

_scale = msgspec.msgpack.Decoder(ScaleRequest)
_drain = msgspec.msgpack.Decoder(DrainRequest)


async def serve_control(bus: Bus, fleet: Fleet) -> list[Subscription]:
    """Answer control requests until the returned subscriptions are closed."""
    return [
        await bus.respond(subjects.CONTROL_SCALE, scale_responder(fleet)),
        await bus.respond(subjects.CONTROL_DRAIN, drain_responder(fleet)),
    ]


def scale_responder(fleet: Fleet) -> Responder:
    """Answers `ScaleRequest`: the counts named are wanted from now on, all of them or none."""

    async def respond(data: bytes) -> bytes:
        try:
            fleet.scale(_scale.decode(data).stages)
        except (ConfigError, msgspec.DecodeError) as error:
            return encode(ControlReply(status="refused", message=str(error)))
        return encode(ControlReply(status="ok"))

    return respond


def drain_responder(fleet: Fleet) -> Responder:
    """Answers `DrainRequest`: the worker finishes what it holds and is not replaced."""

    async def respond(data: bytes) -> bytes:
        try:
            fleet.drain(_drain.decode(data).wid)
        except (ConfigError, msgspec.DecodeError) as error:
            return encode(ControlReply(status="refused", message=str(error)))
        return encode(ControlReply(status="ok"))

    return respond
