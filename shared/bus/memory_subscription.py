"""A core subscription in memory: the task between what was heard and who handles it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.shared.bus import Record
from headrace.shared.bus.memory_core import Ear, Heard, MemoryCore


class MemorySubscription:
    """Hands what an ear hears to one handler, in order, until closed; a running handler is left to finish."""

    def __init__(self, core: MemoryCore, ear: Ear, on_heard: "Callable[[Heard], Coroutine[Any, Any, None]]") -> None:
        self._core = core
        self._ear = ear
        self._on_heard = on_heard
        self._is_closed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """See `Subscription.close`."""
        self._is_closed = True
        self._core.deafen(self._ear)
        self._ear.heard.put_nowait(Heard(Record("", b"", 0)))

    async def _run(self) -> None:
        while True:
            heard = await self._ear.heard.get()
            if self._is_closed:
                return
            await self._on_heard(heard)
