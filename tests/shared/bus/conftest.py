"""Both implementations of the bus behind one fixture, and streams of a test's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from headrace.shared.bus import Bus, ConsumerSpec, Record, StreamSpec
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.bus.nats import connect as connect_nats

Connect = Callable[[], Awaitable[Bus]]


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.live)])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Make connections to one server, in memory or real; they are closed after the test."""
    opened: list[Bus] = []
    memory = MemoryServer()

    async def open_bus() -> Bus:
        bus: Bus = memory.connect()
        if request.param == "nats":
            bus = await connect_nats(request.getfixturevalue("nats_url"), name="test", timeout_s=5)
        opened.append(bus)
        return bus

    yield open_bus
    for bus in opened:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    """One connection."""
    return await connect()


class Places:
    """Names that no other test uses."""

    def __init__(self, bus: Bus) -> None:
        self.root = f"t{uuid4().hex[:12]}"
        self.stream = f"S{self.root}"
        self._bus = bus

    def subject(self, *tokens: str) -> str:
        """A subject of this test's stream."""
        return ".".join((self.root, *tokens))

    async def add_stream(self, **fields: Any) -> StreamSpec:
        """Create this test's stream."""
        spec = replace(StreamSpec(self.stream, (f"{self.root}.>",)), **fields)
        assert await self._bus.ensure_stream(spec) == []
        return spec

    async def add_consumer(self, name: str = "c", **fields: Any) -> ConsumerSpec:
        """Create a consumer on this test's stream."""
        spec = ConsumerSpec(self.stream, name, f"{self.root}.>", ack_wait_s=5.0, max_ack_pending=100)
        spec = replace(spec, **fields)
        assert await self._bus.ensure_consumer(spec) == []
        return spec


@pytest.fixture
def places(bus: Bus) -> Places:
    """Unique names, and the means to create streams and consumers under them."""
    return Places(bus)


class Heard:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._news = asyncio.Condition()

    async def __call__(self, record: Record) -> None:
        """Handle a record."""
        async with self._news:
            self.records.append(record)
            self._news.notify_all()

    async def wait_for(self, count: int, timeout_s: float = 5.0) -> list[Record]:
        """Wait until `count` records came; returns all."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: len(self.records) >= count)
        return self.records


@pytest.fixture
def heard() -> Heard:
    """A handler that remembers."""
    return Heard()


@pytest.fixture
def listening() -> Callable[..., AbstractAsyncContextManager[str]]:
    """`async with listening(serve) as url`: serve TCP connections on a free port, and wait for all in the end."""
    return _listening


@asynccontextmanager
async def _listening(serve: Callable) -> AsyncIterator[str]:
    serving: set[asyncio.Task] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    if serving:
        await asyncio.wait(serving)
