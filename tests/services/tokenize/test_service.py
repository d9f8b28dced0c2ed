"""The stage as a whole: it reports its models, tokenizes both classes, drains."""

import asyncio

import pytest

from headrace.shared import subjects
from headrace.shared.errors import ModelError
from headrace.shared.messages import Text, encode
from headrace.shared.reports import State
from headrace.shared.settings import load
from headrace.shared.stage import Worker
from headrace.tokenize.service import serve


def worker(bus, model: str) -> Worker:
    return Worker(load(sets=[f"model.names={model}"], environ={}), "tokenize", "tokenize-test", bus)


async def test_the_stage_tokenizes_both_classes_until_it_drains(bus, accepted):
    stage = worker(bus, "scripted")
    for cls in ("int", "bat"):
        item = accepted(Text(text=cls), cls=cls)
        await bus.publish(subjects.tok(cls, item.request.rid), encode(item))

    running = asyncio.create_task(serve(stage))
    async with asyncio.timeout(20):
        routed = [await bus.fetch(subjects.RTEQ, f"route-{cls}", batch=1, timeout_s=20) for cls in ("int", "bat")]
        stage.draining.set()
        await running

    (report,) = stage.report.models
    assert all(routed)
    assert (report.name, report.max_tokens, report.chat) == ("scripted", 8192, True)
    assert stage.report.state is State.READY


async def test_a_model_that_does_not_exist_stops_the_stage_with_its_name(bus):
    with pytest.raises(ModelError, match="no-such-model"):
        await serve(worker(bus, "no-such-model"))
