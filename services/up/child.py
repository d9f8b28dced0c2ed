"""One run of one child process. Knows how to start and end it, not when."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.shared.embedded.tether import send, spawn
from headrace.up.relay import Lines, Relay

_READ_BYTES = 65_536

Launcher = Callable[[str], Awaitable["Child"]]
"""stage → a running child with a fresh worker id."""


class Child:
    """A running process; its output goes to the relay."""

    def __init__(self, stage: str, wid: str, process: asyncio.subprocess.Process, relay: Relay) -> None:
        self.stage = stage
        self.wid = wid
        self._process = process
        self._started_at = time.monotonic()
        self._lines = Lines()
        self._pump = asyncio.create_task(self._pump_output(relay))

    @classmethod
    async def start(
        cls,
        stage: str,
        wid: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        relay: Relay,
        pass_fds: Sequence[int] = (),
    ) -> "Child":
        """Start `argv`; it dies with us."""
        process = await spawn(argv, output=asyncio.subprocess.PIPE, env=env, pass_fds=pass_fds)
        return cls(stage, wid, process, relay)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    @property
    def last_line(self) -> str:
        """The last thing it printed."""
        return self._lines.last

    async def wait(self) -> int:
        """Wait for its end and the end of its output; returns the exit code (negative: the signal)."""
        code = await self._process.wait()
        # A grandchild may hold the pipe open; what it prints is not worth waiting for.
        await asyncio.wait({self._pump}, timeout=1.0)
        self._pump.cancel()
        return code

    def terminate(self) -> None:
        """Ask it to drain."""
        send(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        send(self._process, signal.SIGKILL)

    async def _pump_output(self, relay: Relay) -> None:
        stream = self._process.stdout
        assert stream is not None
        while data := await stream.read(_READ_BYTES):
            relay.write(self._lines.feed(data))
        relay.write(self._lines.feed(b""))
