"""Running code that is not the bus's own, such as handlers and callbacks, without letting its failure spread."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import structlog

log = structlog.get_logger()


async def guarded(work: Awaitable[Any], event: str, **context: str) -> None:
    """Await code that is not the bus's own: its failure is logged and must not end a subscription."""
    task = asyncio.current_task()
    assert task is not None
    cancels = task.cancelling()
    try:
        await work
    except asyncio.CancelledError:
        # Only a cancellation meant for this task passes; one that leaks out of `work` is its failure.
        if task.cancelling() > cancels:
            raise
        log.exception(event, **context)
    except Exception:  # a subscriber's error must not kill its subscription
        log.exception(event, **context)
