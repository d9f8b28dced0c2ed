"""The decision to stop: taken once, by a signal or by a failure. Knows nothing of what is stopped."""

import asyncio
import signal
from collections.abc import Callable


class Stop:
    """Create it on the running loop; the first cause decides the exit code."""

    def __init__(self) -> None:
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._hurried = False
        self._on_hurry: Callable[[], None] = lambda: None

    @property
    def is_hurried(self) -> bool:
        """Whether a second signal asked not to wait any longer."""
        return self._hurried

    def decide(self, code: int) -> None:
        """Stop with this exit code, unless that is decided already."""
        if not self._code.done():
            self._code.set_result(code)

    async def wait(self) -> int:
        """Wait for the decision; returns the exit code."""
        return await asyncio.shield(self._code)

    def on_hurry(self, callback: Callable[[], None]) -> None:
        """What a second signal does, beside setting `is_hurried`."""
        self._on_hurry = callback

    def listen_to_signals(self) -> None:
        """SIGTERM and SIGINT: the first stops with exit code 0, the next one hurries."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal)

    def on_signal(self) -> None:
        """What a signal does."""
        if self._code.done():
            self._hurried = True
            self._on_hurry()
        self.decide(0)
