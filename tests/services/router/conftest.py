"""Routers over an in-memory server; the test plays the workers."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from headrace.router.assign import Assigner
from headrace.router.fleet import Fleet
from headrace.router.reclaim import Reclaimer
from headrace.shared import runlog, streams, subjects
from headrace.shared.bus import Bus, Delivery
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.cancels import Cancels
from headrace.shared.ids import new_rid
from headrace.shared.messages import Deadlines, Request, Tokenized, encode
from headrace.shared.packing import pack_ids
from headrace.shared.registry import Registry, forget
from headrace.shared.reports import ModelReport, State, WorkerReport
from headrace.shared.settings import load

ING = "ingress-test"


class Router:
    """The parts of one router process, each to be called by the test."""

    def __init__(self, bus: MemoryBus, number: int) -> None:
        self.bus = bus
        self.wid = f"router-{number}"
        self.registry = Registry(bus)
        self.fleet = Fleet(self.registry)
        self.cancels = Cancels(bus)
        self.draining = asyncio.Event()
        self.reclaimer = Reclaimer(bus, self.registry)
        config = load(sets=["router.direct_tokens=48"], environ={})
        self.assigner = Assigner(
            bus,
            self.wid,
            config,
            self.registry,
            fleet=self.fleet,
            cancels=self.cancels,
            draining=self.draining,
        )

    async def open(self) -> None:
        await self.registry.start()
        await self.cancels.start()

    async def take(self, kind: str = "place", cls: str = "int") -> Delivery:
        (delivery,) = await self.bus.fetch(subjects.RTEQ, f"{kind}-{cls}", batch=1, timeout_s=5)
        return delivery

    async def close(self) -> None:
        await self.cancels.close()
        await self.registry.close()
        await self.bus.close()


class Yard:
    """A provisioned server, its routers, and workers that only report."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.bus = self.server.connect()
        self._routers: list[Router] = []

    async def router(self) -> Router:
        """One more router."""
        router = Router(self.server.connect(), len(self._routers))
        await router.open()
        self._routers.append(router)
        return router

    async def report(self, wid: str, **fields: object) -> WorkerReport:
        """A worker's heartbeat, seen by every router; it lives until it is told gone."""
        known = {"stage": wid.split("-")[0], "state": State.READY, "models": (ModelReport(name="m"),), "slots": 4}
        report = WorkerReport(wid=wid, **{**known, "cache_ok": True, **fields})
        await self.bus.publish(subjects.worker_key(report.stage, wid), encode(report))
        await self.seen(lambda router: router.registry.get(wid) == report)
        return report

    async def gone(self, wid: str) -> None:
        """A worker leaves the registry."""
        await forget(self.bus, wid.split("-")[0], wid)
        await self.seen(lambda router: router.registry.get(wid) is None)

    async def seen(self, check) -> None:
        """Until every router has noticed."""
        await self.until(lambda: all(check(router) for router in self._routers))

    async def until(self, check) -> None:
        """Until `check` holds; each look is one round trip."""
        async with asyncio.timeout(5):
            while not check():
                await self.bus.rtt()

    def item(self, num_tokens: int = 5, **fields: object) -> Tokenized:
        deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=600)
        known = {"rid": new_rid(), "ing": ING, "model": "m", "deadlines": deadlines, "max_new": 10}
        cached = fields.pop("cached", None)
        accepted_ms = fields.pop("accepted_ms", round(time.time() * 1000))
        request = Request(**{**known, **fields})
        return Tokenized(
            request=request, prompt_ids=pack_ids(range(num_tokens)), accepted_ms=accepted_ms, cached=cached
        )

    async def put(self, item: Tokenized, kind: str = "place") -> Tokenized:
        """An item in the routers' queue."""
        subject = subjects.place if kind == "place" else subjects.route
        await self.bus.publish(subject(item.request.cls, item.request.rid), encode(item))
        return item

    async def subjects(self, stream: str) -> list[str]:
        """Subjects of all items of a queue, without the request id."""
        return [record.subject.rsplit(".", 1)[0] for record in await self.bus.read(stream, "work.>")]

    async def log(self, item: Tokenized) -> runlog.RunLog:
        return await runlog.read_log(self.bus, ING, item.request.rid)

    async def close(self) -> None:
        for router in self._routers:
            await router.close()
        await self.bus.close()


class Broken:
    """A bus that loses what `loses` names: the router ends there, as if it had been killed."""

    def __init__(self, bus: Bus, loses: str) -> None:
        self._bus = bus
        self._loses = loses

    def __getattr__(self, name: str) -> object:
        if name != self._loses:
            return getattr(self._bus, name)

        async def killed(*_args: object, **_options: object) -> None:
            raise asyncio.CancelledError

        return killed


@pytest.fixture
def broken() -> type[Broken]:
    return Broken


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    yard = Yard()
    assert await streams.provision(yard.bus) == []
    yield yard
    await yard.close()
