"""A lane: one private inbox that carries one pull request at a time.

JetStream delivers items under their own subject, so the subscription alone tells which pull an item answers. What comes
to a lane outside its pull is given back to the queue at once: nothing waits unseen for its ack timer.
"""

import asyncio
import itertools
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from headrace.shared.bus import Delivery
from headrace.shared.bus.nats_link import Link
from headrace.shared.bus.nats_wire import NO_RESPONDERS, Frame
from headrace.shared.errors import BusError, BusUnavailableError

_NS = 1_000_000_000
_ACK_TOKENS = 9
_GRACE_S = 0.25
"""How long past its expiry the server's word on a pull is waited for."""
_LINGER_S = 0.05
"""How long a batch is held open once it has items: the rest of it is on the wire already, or not there."""

NAK = b"-NAK"


class End(Enum):
    """How a pull ended."""

    ITEMS = auto()
    EXPIRED = auto()
    LOST = auto()
    """The connection was renewed, the server may have forgotten the pull."""
    BUSY = auto()
    """Other pulls wait for more than there is."""
    MISSING = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull request: up to `batch` items, or whatever there is once there is something when `is_burst`."""

    stream: str
    consumer: str
    batch: int
    expires_s: float
    is_burst: bool

    def body(self) -> bytes:
        """The request as JetStream reads it; without expiry it is answered at once."""
        fields: dict[str, object] = {"batch": self.batch}
        if self.expires_s > 0:
            fields["expires"] = int(self.expires_s * _NS)
        if self.is_burst or self.expires_s <= 0:
            fields["no_wait"] = True
        return msgspec.json.encode(fields)


@dataclass(slots=True, eq=False)
class Lane:
    """See the module's docstring; a lane that is not `clean` may still be served an old pull and carries no other."""

    link: Link
    inbox: str
    is_clean: bool = True
    _frames: "_Frames | None" = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def on_frame(self, frame: Frame) -> None:
        """Take a frame off the wire."""
        if self._frames is not None:
            self._frames.put(frame)
        elif frame.reply:
            self._give_back(frame.reply)

    def interrupt(self) -> None:
        """The connection was renewed: end the running pull."""
        if self._frames is not None:
            self._frames.put(None)

    async def pull(self, request: Pull) -> tuple[list[Delivery], End]:
        """Run one pull to its end. Items that cannot be returned are given back, also on cancellation."""
        assert self._frames is None
        self._frames = _Frames()
        self.is_clean = False
        items: list[Delivery] = []
        try:
            reply = f"{self.inbox}.{next(self._numbers)}"
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{request.stream}.{request.consumer}"
            await self.link.send(subject, request.body(), reply=reply)
            end = await self._collect(request, reply, items, self._frames)
        except BaseException:
            for item in items:
                self._give_back(str(item.token))
            raise
        finally:
            self._close()
        return items, end

    async def _collect(self, request: Pull, reply: str, items: list[Delivery], frames: "_Frames") -> End:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.expires_s + _GRACE_S
        while len(items) < request.batch:
            if not await frames.wait(deadline):
                return End.ITEMS if items else End.EXPIRED
            frame = frames.waiting.popleft()
            if frame is None:
                return End.ITEMS if items else End.LOST
            if frame.reply:
                self._take(frame, request, items)
                deadline = loop.time() + _LINGER_S
            elif frame.subject == reply:
                self.is_clean = True
                return End.ITEMS if items else _ending(frame)
        self.is_clean = True
        return End.ITEMS

    def _take(self, frame: Frame, request: Pull, items: list[Delivery]) -> None:
        item = delivery(frame)
        if (item.stream, item.consumer) == (request.stream, request.consumer):
            items.append(item)
        else:
            self._give_back(frame.reply)

    def _give_back(self, ack_subject: str) -> None:
        with suppress(BusUnavailableError):
            self.link.post(ack_subject, NAK)

    def _close(self) -> None:
        frames, self._frames = self._frames, None
        assert frames is not None
        for frame in frames.waiting:
            if frame is not None and frame.reply:
                self._give_back(frame.reply)


class _Frames:
    """What came for a pull and was not looked at yet; None stands for a renewed connection."""

    def __init__(self) -> None:
        self.waiting: deque[Frame | None] = deque()
        self._wanted: asyncio.Future[None] | None = None

    def put(self, frame: Frame | None) -> None:
        """Add one."""
        self.waiting.append(frame)
        self._wake()

    async def wait(self, deadline: float) -> bool:
        """Wait until something is there; False when nothing came until the loop time `deadline`."""
        if not self.waiting:
            loop = asyncio.get_running_loop()
            self._wanted = loop.create_future()
            timer = loop.call_at(deadline, self._wake)
            try:
                await self._wanted
            finally:
                timer.cancel()
                self._wanted = None
        return bool(self.waiting)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


def delivery(frame: Frame) -> Delivery:
    """Decode an item; its ack subject is `$JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<cseq>.<ns>.<pending>`.

    Raises BusError for any other form.
    """
    tokens = frame.reply.split(".")
    if len(tokens) != _ACK_TOKENS:
        raise BusError(f"the server uses an unknown form of ack subjects (feature flag js_ack_fc_v2?): {frame.reply}")
    return Delivery(
        stream=tokens[2],
        consumer=tokens[3],
        subject=frame.subject,
        data=frame.data,
        seq=int(tokens[5]),
        time_s=int(tokens[7]) / _NS,
        num_delivered=int(tokens[4]),
        token=frame.reply,
    )


def _ending(frame: Frame) -> End:
    description = frame.headers.get("Description", "")
    if frame.status == NO_RESPONDERS or "Consumer Deleted" in description:
        return End.MISSING
    if frame.status == "408" and "Requests Pending" in description:
        return End.BUSY
    if frame.status in {"404", "408"}:
        return End.EXPIRED
    return End.REFUSED
