"""Small real processes in place of stages, and a fleet of them."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.shared.ids import new_wid
from headrace.up.child import Child
from headrace.up.fleet import Fleet
from headrace.up.relay import Relay

DRAINS = """
import signal, sys
def leave(*_):
    print("drained", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True: signal.pause()
"""


class Yard:
    """Starts one program per stage and records what becomes of each process."""

    def __init__(self, relay: Relay) -> None:
        self.programs: dict[str, str] = {}
        self.relay = relay
        self.started: list[Child] = []
        self.exits: list[tuple[Child, int, bool]] = []
        self.changed = asyncio.Event()

    async def launch(self, stage: str) -> Child:
        argv = (sys.executable, "-c", self.programs.get(stage, DRAINS))
        child = await Child.start(stage, new_wid(stage), argv, os.environ, self.relay)
        self.started.append(child)
        self.changed.set()
        return child

    def note_exit(self, child: Child, code: int, was_told: bool) -> None:
        self.exits.append((child, code, was_told))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that changes only by starts, exits and printed lines."""
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.02)

    async def all_up(self, number: int) -> None:
        """Wait until `number` processes have run and the living ones handle signals."""
        await self.until(lambda: len(self.started) == number and all(child.last_line for child in self.started))


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    with open(os.devnull, "wb") as sink:  # noqa: ASYNC230, PTH123  # the null device does not block
        yield Yard(Relay(sink.fileno()))


@pytest.fixture
async def fleet(yard: Yard) -> AsyncIterator[Fleet]:
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(group, yard.launch, yard.note_exit, backoff_s=0.05, drain_s=5.0)
        yield fleet
        fleet.kill()
        await fleet.stop(lambda: True)
