"""The tokenize stage: accepted requests become token ids on their way to the router, or end with a clear error."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from headrace.shared import subjects
from headrace.shared.cancels import Cancels
from headrace.shared.config import Config
from headrace.shared.reports import State
from headrace.shared.slots import Slots
from headrace.shared.stage import Source, Worker, run_stage
from headrace.tokenize.handle import Rules
from headrace.tokenize.items import Tokenizing
from headrace.tokenize.models import load_models

_BATCH_SHARE = 8
"""The batch class has one place of its own for this many interactive ones, so that neither starves the other."""


def run(config: Config) -> int:
    """Run one tokenize process; returns its exit code."""
    return run_stage(config, "tokenize", serve)


async def serve(worker: Worker) -> None:
    """Load the models, then tokenize until draining."""
    config = worker.config
    interactive = Slots(config.tokenize.concurrency)
    batch = Slots(max(1, interactive.total // _BATCH_SHARE))
    total = interactive.total + batch.total
    worker.update(slots=total)
    worker.collect = lambda: {"active": interactive.used + batch.used}
    with ExitStack() as stack:
        models = await asyncio.to_thread(load_models, config, stack)
        threads = stack.enter_context(ThreadPoolExecutor(total, thread_name_prefix="tokenize"))
        cancels = Cancels(worker.bus)
        items = Tokenizing(
            worker.bus,
            worker.wid,
            models.served,
            _rules(config),
            threads=threads,
            cancels=cancels,
            max_attempts=config.decode.max_attempts,
        )
        await cancels.start()
        try:
            worker.update(state=State.READY, models=models.reports)
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.pull([Source(subjects.TOKQ, "tok-int", items.handle)], interactive))
                group.create_task(worker.pull([Source(subjects.TOKQ, "tok-bat", items.handle)], batch))
        finally:
            await cancels.close()


def _rules(config: Config) -> Rules:
    return Rules(
        escape_special=config.tokenize.escape_special,
        max_input_tokens=config.limits.max_input_tokens,
        max_output_tokens=config.limits.max_output_tokens,
    )
