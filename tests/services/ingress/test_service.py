"""The stage as a process runs it, over an in-memory queue and a real socket."""

import asyncio
import socket

import aiohttp
import pytest

from headrace.ingress import service
from headrace.shared import streams
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.errors import ConfigError
from headrace.shared.reports import State
from headrace.shared.settings import load
from headrace.shared.stage import Worker


@pytest.fixture
async def bus():
    bus = MemoryServer().connect()
    await streams.provision(bus)
    yield bus
    await bus.close()


@pytest.fixture
def listener(monkeypatch):
    """The supervisor's listening socket, handed over by number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HEADRACE_LISTEN_FD", str(socket.dup(listener.fileno())))
        yield listener


async def test_it_serves_on_the_inherited_socket_and_leaves_when_told(bus, listener):
    worker = Worker(load(environ={}), "ingress", "ingress-1", bus)
    serving = asyncio.create_task(service.serve(worker))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async with aiohttp.ClientSession() as session, session.get(url + "/health/live") as response:
        assert response.status == 200
    assert worker.report.state is State.READY
    worker.draining.set()

    await asyncio.wait_for(serving, 5)


async def test_a_taken_port_is_a_configuration_error(bus, monkeypatch):
    monkeypatch.delenv("HEADRACE_LISTEN_FD", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = Worker(load(sets=(f"up.port={port}",), environ={}), "ingress", "ingress-1", bus)

        with pytest.raises(ConfigError, match=str(port)):
            await service.serve(worker)
