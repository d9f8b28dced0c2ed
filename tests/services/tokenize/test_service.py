"""The stage as a whole: it reports its models, tokenizes both classes, drains."""

import asyncio

from headrace.shared import subjects
from headrace.shared.config import load
from headrace.shared.messages import Text, encode
from headrace.shared.reports import State
from headrace.shared.stage import Worker
from headrace.tokenize.service import serve


async def test_the_stage_tokenizes_both_classes_until_it_drains(bus, accepted):
    arrived = asyncio.Event()
    worker = Worker(load(sets=["model.names=scripted"], environ={}), "tokenize", "tokenize-test", bus)
    items = [accepted(Text(text=cls), cls=cls) for cls in ("int", "bat")]
    for item in items:
        await bus.publish(subjects.tok(item.request.cls, item.request.rid), encode(item))

    running = asyncio.create_task(serve(worker))
    async with asyncio.timeout(20):
        while len(await bus.read(subjects.RTEQ, "work.route.>")) < len(items):
            await bus.fetch(subjects.ADV, "none", batch=1, timeout_s=0.01) if False else await asyncio.sleep(0.01)
        worker.draining.set()
        await running

    assert arrived is not None
    (report,) = worker.report.models
    assert (report.name, report.max_tokens, report.chat) == ("scripted", 8192, True)
    assert worker.report.state is State.READY
