"""One server process: start it, wait until it answers, watch it, stop it. Knows no server by name."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from headrace.shared.embedded.tether import send, spawn
from headrace.shared.errors import ConfigError

_PROBE_EVERY_S = 0.02
_TAIL_BYTES = 4096

Probe = Callable[[], Awaitable[bool]]


class ServerStartError(ConfigError):
    """A server process ended, or did not answer in time, while it was started."""


class ServerProcess:
    """A server that can be started again and again with the same command; one process at a time."""

    def __init__(self, name: str, argv: Sequence[str], url: str, log_file: Path, probe: Probe) -> None:
        """`probe` tells whether the server answers; `log_file` collects what it prints."""
        self.name = name
        self.url = url
        self._argv = argv
        self._log_file = log_file
        self._probe = probe
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id; 0 before the first start."""
        return self._process.pid if self._process else 0

    async def start(self, deadline_s: float = 60.0) -> None:
        """Start the process and return once it answers; raises ServerStartError with its last words."""
        seen = self._log_file.stat().st_size if self._log_file.exists() else 0
        with self._log_file.open("ab") as output:
            process = self._process = await spawn(self._argv, output=output)
        exited = asyncio.create_task(process.wait())
        ready = asyncio.create_task(self._until_ready())
        is_up = False
        try:
            await asyncio.wait({exited, ready}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            is_up = ready.done() and not exited.done()
            reason = self._last_words(seen) if exited.done() else f"no answer within {deadline_s:g} s"
        finally:
            for task in (exited, ready):
                task.cancel()
            if not is_up:
                await self.stop(0.0)
        if not is_up:
            raise ServerStartError(f"{self.name} did not start: {reason}")

    async def wait(self) -> int:
        """Wait until the process ends; returns its exit code (negative: the signal)."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace_s: float = 10.0) -> None:
        """End the process: politely at first, by force after `grace_s`; idempotent."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if grace_s > 0:
            send(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                pass
            else:
                return
        send(process, signal.SIGKILL)
        await process.wait()

    async def _until_ready(self) -> None:
        # A server that answers is the only proof of readiness; log lines differ between versions.
        while not await self._probe():  # noqa: ASYNC110  # another process gives no event
            await asyncio.sleep(_PROBE_EVERY_S)

    def _last_words(self, seen: int) -> str:
        with self._log_file.open("rb") as log:
            log.seek(max(seen, self._log_file.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended at once (see {self._log_file})"
