"""The models of an engine worker: opened together, closed together, and no life without their engines."""

import asyncio
import dataclasses
import threading

import pytest

from headrace.shared import serving
from headrace.shared.cache.memory import MemoryStore
from headrace.shared.engine import SequenceSpec
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.messages import Deadlines, Request
from headrace.shared.reports import WorkerReport
from headrace.shared.serving import EngineFailedError, open_models
from headrace.shared.settings import load

CONFIG = load(sets=["model.names=scripted", "cache.url=off"], environ={})
PROMPT = list(range(40))


class Threads:
    """Engine threads that were not there when the test began."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def names(self) -> list[str]:
        new = set(threading.enumerate()) - self._before
        return [thread.name for thread in new if thread.name.startswith("engine-")]


@pytest.fixture
def threads() -> Threads:
    return Threads()


async def test_the_scripted_model_is_served_and_put_away_again(threads):
    async with open_models(CONFIG, "decode") as models:
        served = models.get("scripted")
        assert served is not None
        assert models.get("another") is None
        assert [report.name for report in models.reports()] == ["scripted"]
        assert models.is_alive()
        assert not models.is_cache_ok()
        assert threads.names() == ["engine-scripted"]
    assert threads.names() == []


async def test_a_model_that_cannot_be_loaded_puts_the_others_away(tmp_path, threads):
    config = load(sets=[f"model.names=scripted,{tmp_path / 'nothing'}", "cache.url=off"], environ={})

    with pytest.raises((ModelError, ConfigError)):
        async with open_models(config, "decode"):
            pytest.fail("it must not open")
    assert threads.names() == []


async def test_work_that_ends_ends_what_runs_beside_it():
    stopped = asyncio.Event()

    async def beside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with open_models(CONFIG, "decode") as models:
        await models.until_failed(asyncio.sleep(0.01), beside())

    assert stopped.is_set()


async def test_what_work_raises_reaches_the_caller():
    async def broken() -> None:
        raise LookupError("mine")

    async with open_models(CONFIG, "decode") as models:
        with pytest.raises(LookupError):
            await models.until_failed(broken())


async def test_something_beside_the_work_that_breaks_ends_it():
    async def broken() -> None:
        raise LookupError("mine")

    async with open_models(CONFIG, "decode") as models:
        with pytest.raises(LookupError):
            await asyncio.wait_for(models.until_failed(asyncio.Event().wait(), broken()), 5)


async def test_an_engine_that_breaks_ends_the_work():
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with open_models(CONFIG, "decode") as models:
        models.get("scripted").driver.failed.set()
        with pytest.raises(EngineFailedError):
            await asyncio.wait_for(models.until_failed(work()), 5)

    assert cancelled.is_set()


async def test_an_idle_worker_learns_that_the_store_is_back(monkeypatch):
    monkeypatch.setattr(serving, "_PING_S", 0.01)
    pinged = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Watched(MemoryStore):
        def ping(self) -> bool:
            loop.call_soon_threadsafe(pinged.set)
            return True

    monkeypatch.setattr(serving, "open_store", lambda *_: Watched())
    async with open_models(CONFIG, "decode") as models:
        assert models.is_cache_ok()
        await asyncio.wait_for(models.until_failed(pinged.wait()), 5)


async def test_blocks_that_fit_are_used_and_others_computed(monkeypatch):
    monkeypatch.setattr(serving, "open_store", lambda *_: MemoryStore())
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
    request = Request(rid="r", ing="i", model="scripted", deadlines=deadlines)
    async with open_models(CONFIG, "decode") as models:
        served = models.get("scripted")
        keys = served.blocks.keys(request, PROMPT)
        payloads = [served.driver._engine._payload(PROMPT, n) for n in range(2)]
        cached = []
        for name, stored in (("good", payloads), ("bad", [payloads[0], b"wrong" * 13])):
            await served.driver.call(lambda engine: engine.drop_cache())
            await served.blocks.put(keys, 0, stored)
            ended = asyncio.get_running_loop().create_future()
            spec = SequenceSpec(id=name, prompt=PROMPT, max_new=0, block_keys=keys)
            await served.add(spec, ended.set_result, num_wanted=2)
            cached.append((await ended).num_cached)
            served.driver.release(name)

    assert cached == [32, 0]


@pytest.mark.parametrize(("prompt_rate", "num_fetches"), [(0.0, 1), (1000.0, 1), (1e6, 0)])
async def test_blocks_that_are_computed_faster_are_not_fetched(monkeypatch, prompt_rate, num_fetches):
    asked = []

    class Watched(MemoryStore):
        def get(self, keys):
            asked.append(keys)
            return super().get(keys)

    monkeypatch.setattr(serving, "open_store", lambda *_: Watched())
    async with open_models(CONFIG, "decode") as models:
        served = models.get("scripted")
        served.driver.pressure = dataclasses.replace(served.driver.pressure, prompt_rate=prompt_rate)
        spec = SequenceSpec(id="s", prompt=PROMPT, max_new=1, block_keys=["kv:a", "kv:b"])
        await served.add(spec, lambda _output: None, num_wanted=2)
        served.driver.release("s")

    assert len(asked) == num_fetches


async def test_a_worker_reports_rates_and_room(monkeypatch):
    async with open_models(CONFIG, "decode") as models:
        full = dataclasses.replace(models.get("scripted").driver.pressure, free_tokens=0, prompt_rate=7.0)
        models.get("scripted").driver.pressure = full
        report = WorkerReport(stage="decode", wid="decode-a", **models.load())

    assert (report.kv_free_tokens, report.prompt_rate, report.cache_ok) == (1, 7.0, False)
    assert report.fetch_rate > 0


async def test_a_prompt_the_engine_refuses_is_refused():
    async with open_models(CONFIG, "decode") as models:
        served = models.get("scripted")
        with pytest.raises(ValueError, match="vocabulary"):
            await served.add(SequenceSpec(id="s", prompt=[99999], max_new=1), lambda _output: None, num_wanted=0)
        assert served.driver.num_sinks == 0
