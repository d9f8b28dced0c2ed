"""One wanted worker: a process is kept running in this seat until it is given up. Knows nothing of other seats."""

import asyncio
from collections.abc import Callable

import structlog

from headrace.up.child import Child, Launcher
from headrace.up.plan import Backoff

log = structlog.get_logger()

OnExit = Callable[[Child, int, bool], None]
"""(child, exit code, whether it was told to leave)."""


class Seat:
    """Starts a process, waits for its end, starts the next one after a pause."""

    def __init__(self, stage: str, launch: Launcher, backoff: Backoff, on_exit: OnExit) -> None:
        self.stage = stage
        self.child: Child | None = None
        """The running process; None before the first start and between two."""
        self._launch = launch
        self._backoff = backoff
        self._on_exit = on_exit
        self._leaving = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        """Whether the seat is given up."""
        return self._leaving.is_set()

    async def keep(self, drain_s: float) -> None:
        """Keep the seat taken until `leave`; then wait up to `drain_s` for the process and kill it."""
        while not self.is_leaving:
            try:
                child = self.child = await self._launch(self.stage)
            except OSError as error:
                log.error("worker_not_started", worker_stage=self.stage, reason=str(error))  # noqa: TRY400  # no fault of ours
                await self._pause(0.0)
                continue
            code = await self._until_exit(child, drain_s)
            self.child = None
            self._on_exit(child, code, self.is_leaving)
            if not self.is_leaving:
                await self._pause(child.lived_s)

    def leave(self) -> None:
        """Give the seat up: its process is asked to drain and is not replaced; idempotent."""
        self._leaving.set()

    def kill(self) -> None:
        """End the running process now."""
        if self.child is not None:
            self.child.kill()

    async def _until_exit(self, child: Child, drain_s: float) -> int:
        exited = asyncio.create_task(child.wait())
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait({exited, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                child.terminate()
                await asyncio.wait({exited}, timeout=drain_s)
            if not exited.done():
                log.warning("drain_cut_short", worker_stage=child.stage, worker=child.wid, drain_s=drain_s)
                child.kill()
            return await exited
        finally:
            leaving.cancel()

    async def _pause(self, lived_s: float) -> None:
        wait_s = self._backoff.after(lived_s)
        log.info("worker_restart_waits", worker_stage=self.stage, wait_s=wait_s)
        try:
            async with asyncio.timeout(wait_s):
                await self._leaving.wait()
        except TimeoutError:
            log.info("worker_restarting", worker_stage=self.stage)
