"""A front door on a real socket over an in-memory queue, with a back end that plays what a test tells it to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from headrace.ingress.app import build_runner
from headrace.ingress.front import Front
from headrace.shared import runlog, streams, subjects
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.errors import Failure
from headrace.shared.messages import Accepted, encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import (
    Cause,
    ChoiceChunk,
    ChoiceEnd,
    EndEvent,
    FinRecord,
    PromptUsage,
    TextEvent,
    TokRecord,
)
from headrace.shared.registry import Registry
from headrace.shared.reports import ModelReport, State, WorkerReport
from headrace.shared.settings import load

MODELS = (
    ModelReport(name="scripted", revision="rev-scripted", max_tokens=8192, created=1_700_000_000),
    ModelReport(name="org/name", revision="0123456789ab", max_tokens=2048, created=1_700_000_001),
)


class Run:
    """One request as the back end sees it."""

    def __init__(self, bus: MemoryBus, accepted: Accepted) -> None:
        self.bus = bus
        self.accepted = accepted
        self.request = accepted.request
        self.rid = accepted.request.rid
        self.num_ids = 0
        self.lease: runlog.Lease | None = None

    async def take(self) -> "Run":
        self.lease = await runlog.take_lease(self.bus, self.request.ing, self.rid, "decode-1", attempt=1)
        return self

    async def say(self, text: str, num_ids: int = 1, end: EndEvent | None = None) -> None:
        """Append `num_ids` ids with one text event; the first record carries the prompt's usage."""
        assert self.lease is not None
        ids = list(range(self.num_ids, self.num_ids + num_ids))
        events = ((TextEvent(text),) if text else ()) + ((end,) if end else ())
        is_first = self.num_ids == 0
        record = TokRecord(
            choices=(ChoiceChunk(o=self.num_ids, t=pack_ids(ids), ev=events),),
            prompt=PromptUsage(prompt_tokens=7, cached_tokens=4) if is_first else None,
            prompt_ids=pack_ids([5, 6, 7]) if is_first and self.request.return_token_ids else None,
        )
        self.num_ids += num_ids
        await runlog.append(self.bus, self.lease, record)

    async def end(self, cause: Cause = "eos", match: str | int | None = None) -> None:
        """An end token, then the terminal record."""
        await self.say("", end=EndEvent(cause=cause, match=match))
        await self.fin(cause, match)

    async def fin(self, cause: Cause, match: str | int | None = None, failure: Failure | None = None) -> None:
        assert self.lease is not None
        record = FinRecord(
            choices=(ChoiceEnd(n=self.num_ids, cause=cause, match=match),),
            prompt=PromptUsage(prompt_tokens=7, cached_tokens=4),
            failure=failure,
        )
        await runlog.finish(self.bus, self.lease, record)

    async def fail(self, failure: Failure) -> None:
        await self.fin("error", failure=failure)

    async def log(self) -> runlog.RunLog:
        return await runlog.read_log(self.bus, self.request.ing, self.rid)


Plan = Callable[[Run], Awaitable[None]]


def pieces(*texts: str, cause: Cause = "eos", match: str | int | None = None) -> Plan:
    """A plan that says the texts, one token each, and ends well."""

    async def play(run: Run) -> None:
        await run.take()
        for text in texts:
            await run.say(text)
        await run.end(cause, match)

    return play


class Backend:
    """Takes every request off the queue and plays the current plan for it."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.plan: Plan = pieces("Hel", "lo")
        self.runs: list[Run] = []
        self.arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        while True:
            for delivery in await self.bus.fetch(subjects.TOKQ, "tok-int", batch=8, timeout_s=1.0):
                run = Run(self.bus, msgspec.msgpack.decode(delivery.data, type=Accepted))
                self.runs.append(run)
                await self.bus.ack(delivery)
                self._tasks.append(asyncio.create_task(self.plan(run)))
                self.arrived.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert [r for r in results if isinstance(r, Exception)] == []


@dataclass
class Door:
    """A running front door with its back end and a client session."""

    url: str
    front: Front
    backend: Backend
    registry_bus: MemoryBus
    server: MemoryServer
    session: aiohttp.ClientSession
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, path: str, body: Any, **kwargs: Any) -> "Answer":
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} | kwargs.pop("headers", {})
        async with self.session.post(self.url + path, data=BytesIO(data), headers=headers, **kwargs) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    async def get(self, path: str, method: str = "GET", **kwargs: Any) -> "Answer":
        async with self.session.request(method, self.url + path, **kwargs) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    async def chat(self, **fields: Any) -> "Answer":
        return await self.post("/v1/chat/completions", chat_body(**fields))

    async def report(self, stage: str, state: State = State.READY, **fields: Any) -> None:
        """Put one worker into the registry."""
        report = WorkerReport(stage=stage, wid=f"{stage}-1", state=state, models=MODELS, **fields)
        await self.registry_bus.publish(subjects.worker_key(stage, report.wid), encode(report))
        await self.front.registry.refresh()

    async def remove(self, stage: str) -> None:
        await self.registry_bus.purge(subjects.WORKERS, subjects.worker_key(stage, f"{stage}-1"))
        await self.front.registry.refresh()


@dataclass
class Answer:
    """One HTTP answer, read to its end."""

    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def frames(self) -> list[Any]:
        """The decoded `data:` frames of a stream, `[DONE]` left out."""
        lines = [line[6:] for line in self.raw.decode().split("\n") if line.startswith("data: ")]
        return [msgspec.json.decode(line) for line in lines if line != "[DONE]"]


def chat_body(**fields: Any) -> dict[str, Any]:
    """A chat body that is fine, with `fields` over it."""
    return {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]} | fields


@contextlib.asynccontextmanager
async def opened(*sets: str) -> AsyncIterator[Door]:
    server = MemoryServer()
    bus = server.connect()
    assert await streams.provision(bus) == []
    config = load(sets=("model.names=scripted", *sets), environ={})
    registry = Registry(bus)
    await registry.start()
    draining = asyncio.Event()
    process = SimpleNamespace(config=config, bus=bus, wid="ingress-1", registry=registry, draining=draining)
    front = Front.of(process)
    await front.inbox.start()
    runner = build_runner(front, shutdown_s=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    backend = Backend(server.connect())
    serving = asyncio.create_task(backend.serve())
    async with aiohttp.ClientSession() as session:
        door = Door(f"http://127.0.0.1:{port}", front, backend, bus, server, session, draining)
        for stage in ("tokenize", "router", "prefill", "decode"):
            await door.report(stage)
        yield door
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await backend.close()
    await runner.cleanup()
    await front.cleanups.settle()
    await front.inbox.stop()
    await registry.close()
    await backend.bus.close()
    await bus.close()


@pytest.fixture
async def open_door() -> AsyncIterator[Callable[..., Awaitable[Door]]]:
    """`await open_door("ingress.keepalive_s=1", …)`: a front door under further settings."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(*sets: str) -> Door:
            return await stack.enter_async_context(opened(*sets))

        yield open_one


@pytest.fixture
async def door(open_door) -> Door:
    return await open_door()


@pytest.fixture
def say() -> Callable[..., Plan]:
    """`say("Hel", "lo", cause="eos")`: a plan for the back end."""
    return pieces


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    """`chat(stream=True)`: a chat body."""
    return chat_body
