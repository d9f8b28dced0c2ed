"""One connection to a NATS server: sending, asking, listening, and what happens when it breaks.

Owns the nats-py client, the reply inbox and every background task. Knows nothing of streams and consumers. nats-py's
own request, flush and rtt are avoided: they wait out their timeout after a disconnect, and a PONG that meets a
cancelled future kills the client's reader without closing the connection.
"""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import nats.errors
import structlog

from headrace.shared.bus.guard import guarded
from headrace.shared.bus.nats_client import LeanClient
from headrace.shared.bus.nats_wire import NO_RESPONDERS, Frame, Hearing, Listening, OnFrame, OnReply
from headrace.shared.errors import BusError, BusUnavailableError, MissingError

ASK_S = 5.0
_ASK_TRY_S = 1.5
_CLOSE_S = 2.0
_CONNECT_TRY_S = 2.0
_PING_S = 3600.0
"""nats-py's own timeout of a ping: never reached, because cancelling a ping kills the reader."""

_SUBJECT_CHARS = 1000
_SUBJECT = re.compile(r"[^\s\x00-\x1f\x7f.]+(\.[^\s\x00-\x1f\x7f.]+)*")

log = structlog.get_logger()


class Link:
    """A connection that heals itself; `closed` is set once it never will again."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.client: Any = LeanClient()
        self.inbox = ""
        self.before_ready: list[Callable[[], None]] = []
        """Called after a reconnect or the close, before anything waiting for the connection goes on."""
        self.reconnect_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._ready = asyncio.Event()
        self._waiting: dict[str, OnReply] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pings: set[asyncio.Task[float]] = set()

    async def open(self, url: str, name: str) -> None:
        """Connect for good: from here on every loss is answered by reconnecting without end."""
        await self.client.connect(
            url,
            name=name,
            connect_timeout=_CONNECT_TRY_S,
            ping_interval=5,
            max_outstanding_pings=2,
            reconnect_time_wait=0.2,
            max_reconnect_attempts=-1,
            flush_timeout=1.0,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_closed,
        )
        self.inbox = self.client.new_inbox()
        await self.client.hear(f"{self.inbox}.r.*", self._on_reply)
        self._ready.set()

    async def ready(self, deadline: float) -> None:
        """Wait until connected; raises BusUnavailableError at loop time `deadline` or when closed for good."""
        if not self.client.is_connected:
            self._ready.clear()
        if not self._ready.is_set() and not self.closed.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ready.wait()
            except TimeoutError:
                raise BusUnavailableError("no connection to the queue server") from None
        if self.closed.is_set():
            raise BusUnavailableError("the connection to the queue server is closed")

    async def send(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Write one message, as `post` does, and wait while the socket is congested."""
        self.post(subject, data, reply=reply, headers=headers)
        if self.client.is_congested:
            await self._decongest()

    def post(self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Write one message; while disconnected it is buffered and sent after the reconnect."""
        _check_subject(subject)
        try:
            self.client.post(subject, data, reply, headers)
        except nats.errors.MaxPayloadError:
            most = self.client.max_payload
            raise BusError(
                f"{subject}: a message of {len(data)} bytes exceeds the server's max_payload of {most}"
            ) from None
        except (
            nats.errors.ConnectionClosedError,
            nats.errors.ConnectionDrainingError,
            nats.errors.OutboundBufferLimitError,
        ) as error:
            raise BusUnavailableError(f"{subject}: {error}") from error
        except nats.errors.Error as error:
            raise BusError(f"{subject}: {error}") from error

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Frame:
        """Send once and return the first reply.

        Raises BusUnavailableError on timeout or when the connection breaks meanwhile (the outcome is unknown),
        MissingError when nobody listens.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not self.client.is_connected or not self._ready.is_set():
            await self.ready(deadline)
        answer: asyncio.Future[Frame | None] = loop.create_future()
        reply = self.expect(lambda frame: None if answer.done() else answer.set_result(frame))
        timer = loop.call_at(deadline, _expire, answer)
        try:
            await self.send(subject, data, reply=reply, headers=headers)
            frame = await answer
        except TimeoutError:
            raise BusUnavailableError(f"{subject}: no answer within {timeout_s:g} s") from None
        finally:
            timer.cancel()
            self.forget(reply)
        if frame is None:
            raise BusUnavailableError(f"{subject}: connection lost before the answer")
        if frame.status == NO_RESPONDERS:
            raise MissingError(f"{subject}: nobody answers")
        return frame

    async def ask(self, subject: str, data: bytes) -> Frame:
        """Request something idempotent, again and again until it is answered or 5 s are over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_S
        while True:
            try:
                return await self.request(subject, data, timeout_s=min(_ASK_TRY_S, deadline - loop.time()))
            except BusUnavailableError:
                if self.closed.is_set() or loop.time() >= deadline:
                    raise

    def expect(self, on_reply: OnReply) -> str:
        """Open a reply subject; `forget` it when done."""
        reply = f"{self.inbox}.r.{next(self._numbers)}"
        self._waiting[reply] = on_reply
        return reply

    def forget(self, reply: str) -> None:
        """Drop what still comes to `reply`."""
        self._waiting.pop(reply, None)

    async def listen(self, subject: str, handle: Callable[[Frame], Awaitable[None]], *, queue: str = "") -> Listening:
        """Subscribe. Frames are handled one after another."""
        listening = Listening(subject, handle, self.spawn)
        listening.subscription = await self._subscribe(subject, listening.take, queue)
        return listening

    async def hear(self, subject: str, on_frame: OnFrame) -> Hearing:
        """Subscribe. Frames are handed on as they arrive, to something that neither waits nor takes long."""
        hearing = Hearing()
        hearing.subscription = await self._subscribe(subject, on_frame, "")
        return hearing

    async def leave(self, hearing: Hearing) -> None:
        """Stop the server from sending to `hearing`, which still hands on what is on its way until it is closed."""
        await self.client.leave(hearing.subscription)

    async def rtt(self, timeout_s: float) -> float:
        """Seconds of one round trip through reader and writer; raises BusUnavailableError."""
        await self.ready(asyncio.get_running_loop().time() + timeout_s)
        ping: asyncio.Task[float] = self.spawn(self.client.rtt(timeout=_PING_S))
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)
        await asyncio.wait({ping}, timeout=timeout_s)
        if not ping.done() or ping.cancelled() or ping.exception() is not None:
            raise BusUnavailableError(f"the queue server did not answer a ping within {timeout_s:g} s")
        return ping.result()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in the background, owned by this connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Flush and close within 2 s; idempotent."""
        closing = asyncio.get_running_loop().create_task(self.client.close())
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        await self._on_closed()
        current = asyncio.current_task()
        tasks = {task for task in (*self._tasks, closing) if task is not current and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)

    async def _subscribe(self, subject: str, on_frame: OnFrame, queue: str) -> Any:
        _check_subject(subject)
        try:
            return await self.client.hear(subject, on_frame, queue=queue)
        except nats.errors.ConnectionClosedError as error:
            raise BusUnavailableError(f"{subject}: {error}") from error
        except nats.errors.Error as error:
            raise BusError(f"{subject}: {error}") from error

    async def _decongest(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        await self.client.decongest()
        # nats-py swallows a cancellation that meets its flush.
        if task.cancelling() > cancels:
            raise asyncio.CancelledError

    def _on_reply(self, frame: Frame) -> None:
        waiting = self._waiting.get(frame.subject)
        if waiting is not None:
            waiting(frame)

    async def _on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            log.error("bus_permission_denied", error=str(error))
        else:
            log.debug("bus_connection_error", error=repr(error))

    async def _on_disconnect(self) -> None:
        self._ready.clear()
        for ping in tuple(self._pings):
            ping.cancel()
        for waiting in tuple(self._waiting.values()):
            waiting(None)
        if not self.closed.is_set() and not self.client.is_closed:
            log.warning("bus_disconnected")

    async def _on_reconnect(self) -> None:
        log.info("bus_reconnected")
        for prepare in self.before_ready:
            prepare()
        self._ready.set()
        for callback in self.reconnect_callbacks:
            self.spawn(guarded(callback(), "bus_reconnect_callback_failed"))

    async def _on_closed(self) -> None:
        self.closed.set()
        for prepare in self.before_ready:
            prepare()
        self._ready.set()
        for waiting in tuple(self._waiting.values()):
            waiting(None)


def _expire(answer: "asyncio.Future[Frame | None]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _check_subject(subject: str) -> None:
    """The server closes the connection on a malformed command: one bad subject would cost everybody's work."""
    if len(subject) > _SUBJECT_CHARS or not _SUBJECT.fullmatch(subject):
        raise BusError(f"a subject of {len(subject)} characters is refused: {subject[:80]!r}")
