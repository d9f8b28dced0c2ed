"""A whole instance over the real queue server, with miniature stages: ready, healed, ordered about, stopped."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest

from headrace.shared import streams, subjects
from headrace.shared.bus.nats import NatsBus, connect
from headrace.shared.config import Cache, Config, Up
from headrace.shared.embedded.data_dir import FOLDERS
from headrace.shared.errors import ConfigError
from headrace.shared.messages import encode
from headrace.shared.registry import Registry
from headrace.shared.reports import STAGES, ControlReply, DrainRequest, ScaleRequest
from headrace.up.child import Child
from headrace.up.instance import Instance
from headrace.up.launch import StageLauncher
from headrace.up.plan import wanted_at_start
from headrace.up.relay import Relay
from headrace.up.servers import KeptServer, start_servers
from headrace.up.stop import Stop

STAGE = """
import asyncio, os, signal, socket, sys
from headrace.shared.bus.nats import connect
from headrace.shared.registry import Heartbeat
from headrace.shared.reports import ModelReport, State, WorkerReport

async def main(url, stage, wid, fd):
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    if fd:
        async def answer(reader, writer):
            await reader.readline()
            writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
            writer.close()
        await asyncio.start_server(answer, sock=socket.socket(fileno=fd))
    bus = await connect(url, name=wid, timeout_s=10)
    report = WorkerReport(stage=stage, wid=wid, pid=os.getpid(), state=State.READY, models=(ModelReport(name="m"),))
    beat = asyncio.create_task(Heartbeat(bus, lambda: report).run())
    await leave.wait()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


class Launcher:
    """Starts miniature stages, or whatever program a stage is given instead."""

    def __init__(self, url: str, listen_fd: int, relay: Relay) -> None:
        self._url = url
        self._listen_fd = listen_fd
        self._relay = relay
        self.programs: dict[str, str] = {}
        self._number = 0

    async def __call__(self, stage: str) -> Child:
        self._number += 1
        wid = f"{stage}-{self._number}"
        fd = self._listen_fd if stage == "ingress" else 0
        program = self.programs.get(stage, STAGE)
        argv = (sys.executable, "-c", program, self._url, stage, wid, str(fd))
        return await Child.start(stage, wid, argv, os.environ, self._relay, (fd,) if fd else ())


class Running:
    """An instance under test, seen from outside."""

    def __init__(self, bus: NatsBus, registry: Registry, servers: list[KeptServer], launcher: Launcher) -> None:
        self.bus = bus
        self.registry = registry
        self.servers = servers
        self.launcher = launcher
        self.stop = Stop()
        self.announced: list[str] = []
        self._changed = asyncio.Event()
        registry.on_change(lambda *_: self._changed.set())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the registry."""
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_empty(self) -> None:
        """Wait until the stored registry holds nobody; a heartbeat on its way when its sender died lives for 3 s."""
        async with asyncio.timeout(10):
            while any(record.data for record in await self.bus.read(subjects.WORKERS, "$KV.WORKERS.>")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def wids(self, stage: str) -> set[str]:
        return {worker.wid for worker in self.registry.workers(stage)}

    async def order(self, subject: str, order: msgspec.Struct) -> ControlReply:
        answer = await self.bus.request(subject, encode(order), timeout_s=5)
        return msgspec.msgpack.decode(answer, type=ControlReply)


@pytest.fixture
async def running(tmp_path) -> AsyncIterator[Running]:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    async with AsyncExitStack() as stack:
        servers = await start_servers(Config(cache=Cache(max_bytes=32 << 20)), tmp_path, stack)
        bus = await connect(servers[0].url, name="test", timeout_s=5)
        stack.push_async_callback(bus.close)
        await streams.provision(bus)
        registry = Registry(bus)
        await registry.start()
        stack.push_async_callback(registry.close)
        yield Running(bus, registry, servers, Launcher(servers[0].url, 0, Relay()))


@contextlib.asynccontextmanager
async def _started(running: Running, **workers: int) -> AsyncIterator[asyncio.Task[int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running.launcher._listen_fd = listener.fileno()
        up = Up(workers=wanted_at_start(workers), restart_backoff_s=0.05, drain_s=5)
        instance = Instance(up, running.bus, running.servers, running.launcher, ["m"], running.announced.append)
        task = asyncio.create_task(instance.run(listener, running.stop))
        yield task
        running.stop.decide(0)
        await asyncio.wait({task})


@pytest.mark.live
async def test_an_instance_gets_ready_heals_and_stops(running):
    async with _started(running) as task:
        await running.until(lambda: all(running.registry.ready(stage) for stage in (*STAGES, "nats", "valkey")))
        (decode,) = running.registry.workers("decode")
        os.kill(decode.pid, signal.SIGKILL)
        await running.until(lambda: decode.wid not in running.wids("decode"))
        await running.until(lambda: bool(running.registry.ready("decode")))
        (nats,) = running.registry.workers("nats")
        os.kill(nats.pid, signal.SIGKILL)
        await running.until(lambda: running.wids("nats") not in ({nats.wid}, set()))
        running.stop.decide(0)
        code = await asyncio.wait_for(task, 20)
        await running.until_empty()

    assert code == 0
    assert [url[:17] for url in running.announced] == ["http://127.0.0.1:"]


@pytest.mark.live
async def test_orders_are_carried_out(running):
    async with _started(running):
        await running.until(lambda: bool(running.registry.ready("decode")))
        scaled = await running.order(subjects.CONTROL_SCALE, ScaleRequest(stages={"decode": 2}))
        await running.until(lambda: len(running.registry.ready("decode")) == 2)
        wid = running.registry.workers("decode")[0].wid
        drained = await running.order(subjects.CONTROL_DRAIN, DrainRequest(wid=wid))
        await running.until(lambda: wid not in running.wids("decode"))
        refused = await running.order(subjects.CONTROL_DRAIN, DrainRequest(wid=wid))

    assert (scaled.status, drained.status, refused.status) == ("ok", "ok", "refused")


@pytest.mark.live
async def test_a_worker_that_refuses_its_configuration_ends_the_start(running):
    running.launcher.programs["decode"] = "import sys; print('headrace: model m is corrupt'); sys.exit(78)"
    async with _started(running) as task:
        with pytest.raises(ConfigError, match=r"^decode did not start: model m is corrupt$"):
            await asyncio.wait_for(task, 20)

    assert running.announced == []


@pytest.mark.live
async def test_workers_of_an_earlier_instance_do_not_make_this_one_ready(running):
    running.launcher.programs["decode"] = "import time; time.sleep(60)"
    async with TaskGroup() as group:
        left_over = await Launcher(running.servers[0].url, 0, Relay())("decode")
        await running.until(lambda: left_over.wid in running.wids("decode"))
        async with _started(running):
            await running.until(lambda: all(running.registry.ready(stage) for stage in STAGES))
            await asyncio.sleep(0)
        left_over.kill()
        group.create_task(left_over.wait())

    assert running.announced == []


def test_the_real_launcher_has_the_same_face(tmp_path):
    launcher = StageLauncher(tmp_path / "config.yaml", 5, Relay())

    assert callable(launcher)
