"""A provisioned in-memory server for tests of what stands on the bus."""

from collections.abc import AsyncIterator

import pytest

from headrace.shared import streams
from headrace.shared.bus.memory import MemoryBus, MemoryServer


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryServer().connect()
    assert await streams.provision(bus) == []
    yield bus
    await bus.close()
