"""One engine on its own thread: commands between steps, outputs in order, and what happens when it breaks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.shared.engine import Payload, SequenceSpec, StepError, StepOutput
from headrace.shared.engine import driver as driving
from headrace.shared.engine.driver import EngineDriver
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.messages import Script, ScriptStep

PROMPT = list(b"a prompt of more than one block of tokens")


def script(*steps: ScriptStep) -> Script:
    return Script(choices=(steps,))


def spec(name: str = "s", max_new: int = 5, **fields: object) -> SequenceSpec:
    return SequenceSpec(id=name, prompt=PROMPT, max_new=max_new, **fields)


class Sink:
    """What came out for one sequence."""

    def __init__(self) -> None:
        self.outputs: list[StepOutput | StepError] = []
        self.ended = asyncio.Event()
        self.began = asyncio.Event()

    def __call__(self, output: StepOutput | StepError) -> None:
        self.outputs.append(output)
        self.began.set()
        if isinstance(output, StepError) or output.cause is not None:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [t for output in self.outputs if isinstance(output, StepOutput) for t in output.tokens]


@pytest.fixture
async def drive() -> AsyncIterator[Callable[[ScriptedEngine], EngineDriver]]:
    """Start a driver around an engine."""
    drivers = []

    def start(engine: ScriptedEngine) -> EngineDriver:
        driver = EngineDriver(engine, "test")
        driver.start()
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.stop()


async def test_outputs_reach_the_loop_in_order(drive):
    driver, sink, threads = drive(ScriptedEngine()), Sink(), set()

    def take(output: StepOutput | StepError) -> None:
        threads.add(threading.current_thread())
        sink(output)

    await driver.add(spec(max_new=200), take)
    await sink.ended.wait()

    assert bytes(sink.tokens) == (b"abcdefghijklmnopqrstuvwxyz" * 8)[:200]
    assert threads == {threading.current_thread()}


async def test_a_command_runs_on_the_engines_thread_and_gives_its_result(drive):
    driver = drive(ScriptedEngine())

    assert await driver.call(lambda engine: (engine.block_tokens, threading.current_thread().name)) == (
        16,
        "engine-test",
    )


async def test_what_a_command_raises_belongs_to_its_caller(drive):
    driver = drive(ScriptedEngine())

    def broken(_engine: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError):
        await driver.call(broken)
    assert driver.is_alive()
    assert not driver.failed.is_set()


async def test_a_refused_sequence_leaves_no_sink(drive):
    driver = drive(ScriptedEngine())

    with pytest.raises(ValueError, match="vocabulary"):
        await driver.add(SequenceSpec(id="s", prompt=[9999], max_new=1), Sink())
    assert driver.num_sinks == 0


async def test_an_id_in_use_is_refused_and_its_owner_unharmed(drive):
    driver, sink = drive(ScriptedEngine()), Sink()
    steps = script(ScriptStep(pause_ms=50), ScriptStep(text="x"), ScriptStep(eos=True))
    await driver.add(spec(script=steps, stop_ids=frozenset({257})), sink)

    with pytest.raises(ValueError, match="in use"):
        await driver.add(spec(), Sink())

    await sink.ended.wait()
    assert sink.tokens == [1001, 257]


async def test_nothing_arrives_after_a_release(drive):
    driver, sink = drive(ScriptedEngine()), Sink()
    await driver.add(spec(max_new=5000), sink)
    await sink.began.wait()
    driver.release("s")
    num_seen = len(sink.outputs)

    assert await driver.call(lambda engine: engine.pressure().num_sequences) == 0
    await asyncio.sleep(0)
    assert len(sink.outputs) == num_seen
    assert driver.num_sinks == 0
    driver.release("s")
    assert driver.is_alive()


async def test_an_add_that_is_cancelled_on_the_way_leaves_nothing(drive):
    driver, busy, go_on = drive(ScriptedEngine()), threading.Event(), threading.Event()

    def hold(_engine: object) -> None:
        busy.set()
        go_on.wait()

    holding = asyncio.create_task(driver.call(hold))
    await asyncio.to_thread(busy.wait)
    adding = asyncio.create_task(driver.add(spec(), Sink()))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    go_on.set()
    await holding

    assert driver.num_sinks == 0
    assert await driver.call(lambda engine: engine.pressure().num_sequences) == 0


async def test_blocks_leave_the_engine_before_the_output_that_tells_of_them(drive):
    driver, sink = drive(ScriptedEngine()), Sink()
    prompt, seen = list(range(200)), []
    keys = [f"k{n}" for n in range(12)]

    def take(first: int, payloads: list[Payload]) -> None:
        assert not sink.ended.is_set()
        seen.append((first, len(payloads)))

    wanted = SequenceSpec(id="s", prompt=prompt, max_new=3, block_keys=keys)
    await driver.add(wanted, sink, first_export=2, on_blocks=take)
    await sink.ended.wait()

    assert seen[0][0] == 2
    assert [first + num for first, num in seen] == [*(first for first, _ in seen[1:]), 12]
    driver.release("s")
    assert await driver.call(lambda _engine: driver._exports) == {}


async def test_a_glance_at_local_blocks_does_not_wait_for_the_engine(drive):
    driver, sink, busy, go_on = drive(ScriptedEngine()), Sink(), threading.Event(), threading.Event()
    await driver.add(SequenceSpec(id="s", prompt=PROMPT, max_new=0, block_keys=["k0", "k1"]), sink)
    await sink.ended.wait()

    def hold(_engine: object) -> None:
        busy.set()
        go_on.wait()

    holding = asyncio.create_task(driver.call(hold))
    await asyncio.to_thread(busy.wait)
    assert driver.num_local(["k0", "k1", "k2"]) == 2
    go_on.set()
    await holding


async def test_a_fault_of_one_sequence_is_told_to_it_alone(drive):
    driver, good, bad = drive(ScriptedEngine()), Sink(), Sink()
    await driver.add(spec("good", script=script(ScriptStep(pause_ms=50), ScriptStep(random=4))), good)
    await driver.add(spec("bad", script=script(ScriptStep(fault="raise"))), bad)
    await asyncio.gather(good.ended.wait(), bad.ended.wait())

    assert isinstance(bad.outputs[-1], StepError)
    assert len(good.tokens) == 5
    assert driver.is_alive()


async def test_a_listener_that_breaks_costs_the_others_nothing(drive):
    driver, good = drive(ScriptedEngine()), Sink()

    def broken(_output: object) -> None:
        raise RuntimeError("a bug")

    pause = script(ScriptStep(pause_ms=60_000))
    await driver.add(spec("broken", script=pause), broken)
    await driver.add(spec("good", script=pause), good)
    driver._deliver([StepOutput("broken", tokens=(1,)), StepOutput("good", tokens=(2,))])  # as of one step

    assert good.tokens == [2]


async def test_an_engine_that_breaks_as_a_whole_fails_its_worker(drive):
    class Broken(ScriptedEngine):
        def step(self) -> list[StepOutput]:
            raise MemoryError

    driver = drive(Broken())
    await driver.add(spec(), Sink())

    await asyncio.wait_for(driver.failed.wait(), 5)
    await asyncio.to_thread(driver._thread.join)
    assert not driver.is_alive()


async def test_a_step_that_takes_for_ever_is_no_life(drive, monkeypatch):
    monkeypatch.setattr(driving, "_STUCK_S", 0.0)
    stuck, go_on = threading.Event(), threading.Event()

    def fault(_kind: object) -> None:
        stuck.set()
        go_on.wait()

    driver = drive(ScriptedEngine(fault=fault))
    assert driver.is_alive()
    await driver.add(spec(script=script(ScriptStep(fault="hang"))), Sink())
    await asyncio.to_thread(stuck.wait)

    assert not driver.is_alive()
    go_on.set()


async def test_an_idle_driver_computes_nothing_and_reports_no_load(drive):
    driver, sink = drive(ScriptedEngine()), Sink()
    await driver.add(spec(), sink)
    await sink.ended.wait()
    driver.release("s")
    await driver.call(lambda engine: engine.check())

    assert driver.pressure.num_sequences == 0
    assert driver.pressure.used_blocks == 0
    assert driver._computed == {}


@pytest.mark.parametrize("max_new", [0, 5])
async def test_the_rate_counts_computed_prompts_and_generated_tokens(drive, max_new):
    driver, sink = drive(ScriptedEngine()), Sink()

    await driver.add(spec(max_new=max_new), sink)
    await sink.ended.wait()

    assert driver.rate > 0


def test_tokens_of_a_prompt_that_were_found_do_not_count_as_computed():
    loop = asyncio.new_event_loop()

    async def made() -> EngineDriver:
        return EngineDriver(ScriptedEngine(), "test")

    driver = loop.run_until_complete(made())
    loop.close()
    steps = [
        StepOutput("s", num_computed=32, num_cached=16),
        StepOutput("s", num_computed=48, num_cached=16),
        StepOutput("s", num_computed=16, num_cached=16),  # preempted
        StepOutput("s", num_computed=64, num_cached=16, tokens=(1,), cause="length"),
    ]

    assert [driver._num_new(step) for step in steps] == [16, 16, 0, 49]
    assert driver._computed == {}


async def test_pauses_end_by_themselves(drive):
    driver, sink = drive(ScriptedEngine()), Sink()
    await driver.add(spec(max_new=1, script=script(ScriptStep(pause_ms=30), ScriptStep(text="x"))), sink)

    await asyncio.wait_for(sink.ended.wait(), 5)
    assert sink.tokens == [1001]


async def test_a_stopped_driver_has_no_thread(drive):
    driver = drive(ScriptedEngine())
    driver.stop()

    assert not driver._thread.is_alive()
    assert not driver.is_alive()


async def test_a_pause_of_centuries_does_not_break_the_engine(drive: Callable[[ScriptedEngine], EngineDriver]) -> None:
    driver = drive(ScriptedEngine())
    patient, quick = Sink(), Sink()
    await driver.add(spec("patient", script=script(ScriptStep(pause_ms=10**15))), patient)
    await driver.add(spec("quick"), quick)

    await asyncio.wait_for(quick.ended.wait(), 5)
    assert driver.is_alive()
    assert not driver.failed.is_set()
