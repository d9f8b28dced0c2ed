"""The embedded servers of one instance: started, kept alive, shown in the registry. Knows no stage."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from headrace.shared.config import Config
from headrace.shared.embedded.nats_server import start_nats
from headrace.shared.embedded.process import ServerProcess, ServerStartError
from headrace.shared.embedded.valkey_server import start_valkey
from headrace.shared.ids import new_wid
from headrace.shared.reports import State, WorkerReport
from headrace.up.plan import Backoff

OFF = "off"
_BACKOFF_S = 0.1
"""Everything waits for these servers, so the first restart comes at once."""

log = structlog.get_logger()


class KeptServer:
    """One embedded server, started again whenever it dies; its address never changes."""

    def __init__(self, stage: str, server: ServerProcess, metrics: str = "") -> None:
        """`metrics`: URL of its monitoring page."""
        self.stage = stage
        self.url = server.url
        self._server = server
        self._metrics = metrics
        self._started_at = time.monotonic()
        self._report = self._fresh_report()

    def report(self) -> WorkerReport:
        """What the registry shows of it."""
        return self._report

    async def keep(self, on_death: Callable[[str, str], Awaitable[None]]) -> None:
        """Watch and restart until cancelled; `on_death(stage, wid)` hears of each process that is gone."""
        backoff = Backoff(_BACKOFF_S)
        while True:
            code = await self._server.wait()
            gone = self._report.wid
            wait_s = backoff.after(time.monotonic() - self._started_at)
            log.error("server_died", server=self.stage, code=code, restart_in_s=wait_s)
            await asyncio.sleep(wait_s)
            try:
                await self._server.start()
            except ServerStartError as error:
                log.error("server_not_started", server=self.stage, reason=str(error))  # noqa: TRY400  # its own words
                continue
            self._started_at = time.monotonic()
            self._report = self._fresh_report()
            log.info("server_restarted", server=self.stage, pid=self._server.pid)
            await on_death(self.stage, gone)

    def _fresh_report(self) -> WorkerReport:
        return WorkerReport(
            stage=self.stage,
            wid=new_wid(self.stage),
            pid=self._server.pid,
            state=State.READY,
            metrics=self._metrics,
            url=self.url,
            started_ms=time.time_ns() // 1_000_000,
        )


async def start_servers(config: Config, data_dir: Path, stack: AsyncExitStack) -> list[KeptServer]:
    """Start those whose URL is not configured; `stack` stops them. Raises ConfigError."""
    kept = []
    if not config.nats.url:
        nats, metrics = await start_nats(config.nats, data_dir)
        stack.push_async_callback(nats.stop)
        kept.append(KeptServer("nats", nats, metrics))
    if not config.cache.url:
        valkey = await start_valkey(config.cache, data_dir)
        stack.push_async_callback(valkey.stop)
        kept.append(KeptServer("valkey", valkey))
    return kept
