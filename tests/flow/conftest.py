"""All stages behind ingress in one process, over the in-memory server, on the scripted model.

The test plays ingress: it publishes requests and reads their run logs. A worker can be killed: its coroutines stop
where they are, nothing is acked, handed over or said goodbye to; only its registry key goes, as `up` sees to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace.decode import service as decode
from headrace.prefill import service as prefill
from headrace.router import service as router
from headrace.shared import registry, runlog, streams, subjects
from headrace.shared.bus import Record
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.config import Config
from headrace.shared.ids import new_rid, new_wid
from headrace.shared.messages import Accepted, Conversation, Deadlines, Request, Sampling, Script, Text, Turn, encode
from headrace.shared.packing import unpack_ids
from headrace.shared.records import ReqRecord, TextEvent
from headrace.shared.reports import State
from headrace.shared.runlog import RunLog
from headrace.shared.settings import load
from headrace.shared.stage import Worker
from headrace.tokenize import service as tokenize

SERVES = {"tokenize": tokenize.serve, "router": router.serve, "prefill": prefill.serve, "decode": decode.serve}
ING = "ingress-test"


class Process:
    """One worker as if it were a process."""

    def __init__(self, worker: Worker, bus: MemoryBus, main: Awaitable[None]) -> None:
        self.worker = worker
        self._bus = bus
        self._tasks = [asyncio.ensure_future(main), asyncio.create_task(worker.heartbeat.run())]

    @property
    def wid(self) -> str:
        return self.worker.wid

    async def drain(self) -> None:
        """SIGTERM."""
        await self.worker.drain()
        await asyncio.wait_for(self._tasks[0], 10)
        await self.worker.heartbeat.withdraw()
        await self._leave()

    async def kill(self) -> None:
        """kill -9."""
        await self._bus.close()
        await self._leave()

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.worker.registry.close()
        await self._bus.close()


class Plant:
    """A provisioned server with the workers that a test starts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.server = MemoryServer()
        self.bus = self.server.connect()
        self._processes: list[Process] = []
        self._news = asyncio.Event()

    async def open(self) -> None:
        """Provision the server and listen to everything that happens to requests and workers."""
        assert await streams.provision(self.bus) == []
        for subject in ("out.>", subjects.REGISTRY_UPDATES, "dlq.>"):
            await self.bus.subscribe(subject, self._on_news)

    async def _on_news(self, _record: Record) -> None:
        self._news.set()

    async def start(self, *stages: str) -> list[Process]:
        """Start one worker of each named stage and wait until all are ready."""
        started = []
        for stage in stages:
            bus = self.server.connect()
            worker = Worker(self.config, stage, new_wid(stage), bus)
            await worker.registry.start()
            started.append(Process(worker, bus, SERVES[stage](worker)))
        self._processes += started
        for process in started:
            await self.until(lambda process=process: _is_ready(process))
        return started

    async def kill(self, process: Process) -> None:
        """Kill a worker; the supervisor removes its registry key."""
        await process.kill()
        self._processes.remove(process)
        await registry.forget(self.bus, process.worker.stage, process.wid)

    async def drain(self, process: Process) -> None:
        """SIGTERM a worker; returns when it has left."""
        await process.drain()
        self._processes.remove(process)

    async def until(self, check: Callable[[], Awaitable[object]], timeout_s: float = 20) -> None:
        """Look again whenever a record or a registry entry is written, until `check` gives something true."""
        async with asyncio.timeout(timeout_s):
            while True:
                self._news.clear()
                if await check():
                    return
                await self._news.wait()

    async def submit(self, script: Script | None = None, *, prompt: str = "hi", **fields: object) -> str:
        """Accept a request as ingress does; returns its id."""
        rid = new_rid()
        sampling = fields.pop("sampling", Sampling(seed=7))
        deadlines = fields.pop("deadlines", Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60))
        request = Request(
            rid=rid, ing=ING, model="scripted", deadlines=deadlines, sampling=sampling, script=script, **fields
        )
        record = ReqRecord(tenant="default", protocol="completion", model="scripted")
        await self.bus.publish(subjects.run(ING, rid, "req"), encode(record))
        item = Accepted(request=request, prompt=Text(text=prompt))
        await self.bus.publish(subjects.tok("int", rid), encode(item))
        return rid

    async def chat(self, content: str, **fields: object) -> str:
        """Accept a conversation of one user turn."""
        rid = new_rid()
        deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
        request = Request(rid=rid, ing=ING, model="scripted", deadlines=deadlines, **fields)
        turns = (Turn(role="user", text=content),)
        await self.bus.publish(
            subjects.tok("int", rid), encode(Accepted(request=request, prompt=Conversation(turns=turns)))
        )
        return rid

    async def log(self, rid: str) -> RunLog:
        """The request's log as it stands."""
        return await runlog.read_log(self.bus, ING, rid)

    async def ended(self, rid: str, timeout_s: float = 20) -> RunLog:
        """The request's log once it has ended."""

        async def is_ended() -> bool:
            return (await self.log(rid)).fin is not None

        await self.until(is_ended, timeout_s)
        return await self.log(rid)

    async def num_queued(self) -> int:
        """Work items left in any queue."""
        return sum([len(await self.bus.read(stream, "work.>")) for stream in subjects.WORK_STREAMS])

    async def close(self) -> None:
        for process in list(self._processes):
            await process.kill()
        await self.bus.close()


@pytest.fixture
async def plant(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plant]:
    monkeypatch.setattr("headrace.shared.engine.driver._JOIN_S", 0.1)  # engines that hang are left behind
    monkeypatch.setattr("headrace.shared.slots._FETCH_S", 0.2)  # a drain waits for the fetch under way
    config = load(sets=["model.names=scripted", "cache.url=off", "router.sweep_s=0.3"], environ={})
    plant = Plant(config)
    await plant.open()
    yield plant
    await plant.close()


async def _is_ready(process: Process) -> bool:
    return process.worker.report.state is State.READY


def text_of(log: RunLog) -> str:
    """Visible text of a log."""
    events = [event for _, record in log.toks for chunk in record.choices for event in chunk.ev]
    return "".join(event.s for event in events if isinstance(event, TextEvent))


def ids_of(log: RunLog) -> list[int]:
    """Generated ids of a log; asserts that offsets are contiguous."""
    ids: list[int] = []
    for _, record in log.toks:
        for chunk in record.choices:
            assert chunk.o == len(ids)
            ids += unpack_ids(chunk.t)
    return ids


@pytest.fixture
def read() -> tuple[Callable[[RunLog], str], Callable[[RunLog], list[int]]]:
    """(text of a log, ids of a log)."""
    return text_of, ids_of
