"""The decision to stop: the first cause counts, a second signal hurries."""

import asyncio
import os
import signal

from headrace.up.stop import Stop


async def test_the_first_cause_decides():
    stop = Stop()
    stop.decide(78)
    stop.decide(1)

    assert await stop.wait() == 78


async def test_a_signal_stops_and_a_second_one_hurries():
    hurried = asyncio.Event()
    stop = Stop()
    stop.on_hurry(hurried.set)
    stop.listen_to_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    code = await asyncio.wait_for(stop.wait(), 5)
    was_hurried = stop.is_hurried
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(hurried.wait(), 5)

    assert (code, was_hurried, stop.is_hurried) == (0, False, True)
