"""One running instance: its workers, its view of the registry, its readiness, its end.

Servers and streams are there before it and stay after it.
"""

import asyncio
import contextlib
import socket
from asyncio import TaskGroup
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from headrace.shared.bus.nats import NatsBus
from headrace.shared.config import Up
from headrace.shared.errors import ConfigError
from headrace.shared.registry import Heartbeat, Registry, forget
from headrace.up.child import Child, Launcher
from headrace.up.control import serve_control
from headrace.up.fleet import Fleet
from headrace.up.front_door import is_open, reachable
from headrace.up.plan import HangWatch, can_become_ready, missing
from headrace.up.servers import KeptServer
from headrace.up.sockets import base_url
from headrace.up.stop import Stop

EXIT_CONFIG = 78
_WATCH_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_KNOCK_EVERY_S = 0.1

log = structlog.get_logger()


class Instance:
    """Runs the workers of one instance until `stop` is decided."""

    def __init__(
        self,
        up: Up,
        bus: NatsBus,
        servers: list[KeptServer],
        launch: Launcher,
        models: list[str],
        announce: Callable[[str], None],
    ) -> None:
        """`models`: the names clients use; `announce` is given the URL once, when a request would succeed."""
        self._up = up
        self._tell_ready = announce
        self._bus = bus
        self._servers = servers
        self._launch = launch
        self._models = models
        self._registry = Registry(bus)
        self._changed = asyncio.Event()
        self._is_ready = False
        self._refusal: str | None = None
        """Why a worker refused to start, before readiness."""

    async def run(self, listener: socket.socket, stop: Stop) -> int:
        """Start the workers, announce readiness, stop them in order; returns the exit code. Raises ConfigError."""
        await self._registry.start()
        self._registry.on_change(lambda _wid, _report: self._changed.set())
        try:
            async with TaskGroup() as group:
                code = await self._live(group, listener, stop)
            for server in self._servers:
                await forget(self._bus, server.stage, server.report().wid)
        finally:
            await self._registry.close()
        if self._refusal is not None:
            raise ConfigError(self._refusal)
        return code

    async def _live(self, group: TaskGroup, listener: socket.socket, stop: Stop) -> int:
        def on_exit(child: Child, code: int, was_told: bool) -> None:
            group.create_task(forget(self._bus, child.stage, child.wid))
            self._note_exit(child, code, was_told, stop)

        fleet = Fleet(group, self._launch, on_exit, backoff_s=self._up.restart_backoff_s, drain_s=self._up.drain_s)
        stop.on_hurry(fleet.kill)
        work = (self._watch(fleet), self._announce(fleet, listener, stop), self._notice_loss(stop), *self._keep())
        background = [group.create_task(each) for each in work]
        fleet.scale(self._up.workers)
        subscriptions = await serve_control(self._bus, fleet)
        code = await stop.wait()
        log.info("stopping", code=code)
        for subscription in subscriptions:
            await subscription.close()
        # Nobody queues up behind a door that will not open again.
        listener.close()
        await fleet.stop(lambda: stop.is_hurried)
        for task in background:
            task.cancel()
        return code

    def _keep(self) -> list[Coroutine[Any, Any, None]]:
        async def tell(stage: str, wid: str) -> None:
            await forget(self._bus, stage, wid)

        keeping = [server.keep(tell) for server in self._servers]
        return [*keeping, *(Heartbeat(self._bus, server.report).run() for server in self._servers)]

    def _note_exit(self, child: Child, code: int, was_told: bool, stop: Stop) -> None:
        self._changed.set()
        fields = {"worker_stage": child.stage, "worker": child.wid, "code": code, "lived_s": round(child.lived_s, 1)}
        if was_told:
            log.info("worker_stopped", **fields)
            return
        log.warning("worker_died", **fields, last_line=child.last_line)
        if code == EXIT_CONFIG and not self._is_ready:
            self._refusal = f"{child.stage} did not start: {child.last_line.removeprefix('headrace: ')}"
            stop.decide(EXIT_CONFIG)

    async def _announce(self, fleet: Fleet, listener: socket.socket, stop: Stop) -> None:
        """Announce the instance once a request would succeed; give up after the configured time."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._up.ready_timeout_s
        while True:
            self._changed.clear()
            reasons = self._missing(fleet)
            # Ingress has a registry of its own, which may be a moment behind ours.
            if not reasons and await is_open(reachable(listener)):
                break
            if loop.time() >= give_up_at and can_become_ready(fleet.wanted):
                log.error("never_ready", reasons=reasons or ["/health/ready does not answer 200"])
                stop.decide(1)
                return
            # Not wait_for: before Python 3.12 it loses a cancel that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S if reasons else _KNOCK_EVERY_S):
                    await self._changed.wait()
        self._is_ready = True
        log.info("ready", url=base_url(listener))
        self._tell_ready(base_url(listener))

    def _missing(self, fleet: Fleet) -> list[str]:
        """Reasons against readiness. Workers that an earlier instance left in the registry do not count."""
        wanted = fleet.wanted
        own = {child.wid for child in fleet.children}
        workers = [worker for worker in self._registry.workers() if worker.wid in own or not wanted.get(worker.stage)]
        return missing(workers, wanted, self._models)

    async def _watch(self, fleet: Fleet) -> None:
        """Kill workers that live but have fallen silent; their seats start new ones."""
        loop = asyncio.get_running_loop()
        watch = HangWatch(self._up.hang_s)
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            registered = [worker.wid for worker in self._registry.workers()]
            for wid in watch.silent(loop.time(), [child.wid for child in fleet.children], registered):
                log.error("worker_silent", worker=wid, hang_s=self._up.hang_s)
                fleet.kill(wid)

    async def _notice_loss(self, stop: Stop) -> None:
        await self._bus.closed.wait()
        log.error("server_connection_closed")
        stop.decide(1)
