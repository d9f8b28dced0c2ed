"""Decode workers over an in-memory server, on the scripted model; the test plays the router."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.decode import service
from headrace.decode.claim import Claim, claim
from headrace.decode.stream import ChunkWriter
from headrace.shared import registry, runlog, streams, subjects
from headrace.shared.bus import Record
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.catalogue import ModelFiles
from headrace.shared.config import Config
from headrace.shared.ids import new_rid, new_wid
from headrace.shared.messages import Deadlines, Request, Sampling, Script, ScriptStep, Tokenized, encode
from headrace.shared.packing import pack_ids, unpack_ids
from headrace.shared.records import EndEvent, FinRecord, ReqRecord, TextEvent
from headrace.shared.reports import State, WorkerReport
from headrace.shared.runlog import Lease, RunLog
from headrace.shared.settings import load
from headrace.shared.stage import Worker
from headrace.shared.text.model import load_text_model
from headrace.shared.text.pipeline import TextPipeline

ING = "ingress-test"
TOKENIZER = load_text_model(ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="00")).tokenizer


class Desk:
    """A provisioned server with the decode workers that a test starts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.server = MemoryServer()
        self.bus = self.server.connect()
        self._news = asyncio.Event()
        self._running: list[tuple[Worker, MemoryBus, asyncio.Task[None], asyncio.Task[None]]] = []

    async def open(self) -> None:
        """Provision and listen."""
        assert await streams.provision(self.bus) == []
        for subject in ("out.>", subjects.REGISTRY_UPDATES, "dlq.>"):
            await self.bus.subscribe(subject, self._on_news)
        # While a router is there, workers leave its queue alone.
        router = WorkerReport(stage="router", wid="router-test", state=State.READY)
        self._router = asyncio.create_task(registry.Heartbeat(self.bus, lambda: router).run())

    async def _on_news(self, _record: Record) -> None:
        self._news.set()

    async def start(self) -> Worker:
        """A ready worker with its consumer."""
        bus = self.server.connect()
        worker = Worker(self.config, "decode", new_wid("decode"), bus)
        await worker.registry.start()
        spec = streams.worker_consumer_spec("decode", worker.wid, self.config.decode.slots)
        await self.bus.ensure_consumer(spec)
        main = asyncio.ensure_future(service.serve(worker))
        self._running.append((worker, bus, main, asyncio.create_task(worker.heartbeat.run())))
        await self.until(lambda: _is_ready(worker))
        return worker

    async def drain(self, worker: Worker) -> None:
        """SIGTERM; returns when the worker is through."""
        await worker.drain()
        main = next(main for known, _, main, _ in self._running if known is worker)
        async with asyncio.timeout(10):
            await asyncio.shield(main)

    async def kill(self, worker: Worker) -> None:
        """kill -9, noticed at once."""
        entry = next(entry for entry in self._running if entry[0] is worker)
        self._running.remove(entry)
        await _stop(*entry)
        await registry.forget(self.bus, "decode", worker.wid)

    async def put(self, worker: Worker, script: Script | None = None, **fields: object) -> Tokenized:
        """A request in the worker's queue, as the router puts it there."""
        item = item_of(script, **fields)
        await self.bus.publish(subjects.run(ING, item.request.rid, "req"), encode(req_record()))
        await self.bus.publish(subjects.dec(worker.wid, item.request.rid), encode(item))
        return item

    async def log(self, rid: str) -> RunLog:
        """The log as it stands."""
        return await runlog.read_log(self.bus, ING, rid)

    async def ended(self, item: Tokenized, timeout_s: float = 10) -> RunLog:
        """The log once the request has ended."""
        rid = item.request.rid

        async def has_fin() -> bool:
            return (await self.log(rid)).fin is not None

        await self.until(has_fin, timeout_s)
        return await self.log(rid)

    async def begun(self, item: Tokenized) -> RunLog:
        """The log once it holds tokens."""
        rid = item.request.rid

        async def has_tokens() -> bool:
            return bool((await self.log(rid)).toks)

        await self.until(has_tokens)
        return await self.log(rid)

    async def until(self, check: Callable[[], Awaitable[object]], timeout_s: float = 10) -> None:
        """Look again at every news, and every now and then for what makes none, until `check` gives something true."""
        async with asyncio.timeout(timeout_s):
            while not await check():
                self._news.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def is_queue_empty(self) -> bool:
        """Whether no decode worker has an item left."""
        return await self.bus.last(subjects.DECQ, "work.dec.>") is None

    async def close(self) -> None:
        """Stop whoever still runs."""
        for entry in self._running:
            await _stop(*entry)
        self._router.cancel()
        await asyncio.gather(self._router, return_exceptions=True)
        await self.bus.close()


async def _stop(worker: Worker, bus: MemoryBus, *tasks: "asyncio.Task[None]") -> None:
    await bus.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await worker.registry.close()


async def _is_ready(worker: Worker) -> bool:
    return worker.report.state is State.READY


def item_of(script: Script | None = None, **fields: object) -> Tokenized:
    known = {
        "rid": new_rid(),
        "ing": ING,
        "model": "scripted",
        "deadlines": Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60),
        "max_new": 2000,
    }
    request = Request(script=script, **{**known, **fields})
    ids = pack_ids(list(b"a prompt of some length"))
    return Tokenized(request=request, prompt_ids=ids, accepted_ms=round(time.time() * 1000))


def req_record() -> ReqRecord:
    return ReqRecord(tenant="default", protocol="completion", model="scripted")


class Scribe:
    """Writes one log as a decode worker does, ids and stops given by the test."""

    def __init__(self, bus: MemoryBus, rid: str = "r") -> None:
        self.bus = bus
        self.rid = rid
        self.pipeline: TextPipeline
        self.lease: Lease

    async def writer(self, sampling: Sampling, *, chunk_tokens: int = 64, over: int = 0) -> ChunkWriter:
        """Take the lease over the one at `over`, replay what is logged, go on writing."""
        self.lease = await runlog.take_lease(self.bus, ING, self.rid, "decode-1", attempt=1, expected_seq=over)
        held = Claim(self.lease, await self.log())
        self.pipeline = TextPipeline(TOKENIZER, sampling)
        self.pipeline.replay(held.generated)
        assert held.agrees_with(self.pipeline.state)
        return ChunkWriter(
            self.bus, self.lease, self.pipeline, sampling, generated=held.generated, chunk_tokens=chunk_tokens
        )

    async def log(self) -> RunLog:
        return await runlog.read_log(self.bus, ING, self.rid)


def text_of(log: RunLog) -> str:
    events = [event for _, record in log.toks for chunk in record.choices for event in chunk.ev]
    return "".join(event.s for event in events if isinstance(event, TextEvent))


def ids_of(log: RunLog) -> list[int]:
    """Ids of a log; asserts that offsets are contiguous."""
    ids: list[int] = []
    for _, record in log.toks:
        for chunk in record.choices:
            assert chunk.o == len(ids)
            ids += unpack_ids(chunk.t)
    return ids


def ends_of(log: RunLog) -> list[EndEvent]:
    events = [event for _, record in log.toks for chunk in record.choices for event in chunk.ev]
    return [event for event in events if isinstance(event, EndEvent)]


def words(num: int, pause_ms: int = 0) -> Script:
    """One token per word, a pause after each, then the end."""
    steps = []
    for n in range(num):
        steps.append(ScriptStep(text=f"w{n} "))
        if pause_ms:
            steps.append(ScriptStep(pause_ms=pause_ms))
    return Script(choices=((*steps, ScriptStep(eos=True)),))


class Kit:
    """What the tests of this folder make things with."""

    ING = ING
    Scribe = Scribe
    claim = staticmethod(claim)
    item = staticmethod(item_of)
    req = staticmethod(req_record)
    text = staticmethod(text_of)
    ids = staticmethod(ids_of)
    ends = staticmethod(ends_of)
    words = staticmethod(words)
    tokenizer = TOKENIZER
    FinRecord = FinRecord


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A connection to a provisioned server of its own."""
    bus = MemoryServer().connect()
    assert await streams.provision(bus) == []
    yield bus
    await bus.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk(load(sets=["model.names=scripted", "cache.url=off", "decode.slots=4"], environ={}))
    await desk.open()
    yield desk
    await desk.close()
