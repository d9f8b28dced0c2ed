"""Runs one engine on its own thread and lets coroutines use it.

The engine is synchronous and single-threaded; the event loop must never wait for it. Commands run on the engine's
thread between two steps, the outputs of a step reach the loop in one call.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from headrace.shared.engine import Engine, Payload, Pressure, SequenceSpec, StepError, StepOutput
from headrace.shared.telemetry import metrics

_LONGEST_WAIT_S = 3600.0
"""A script may ask for a pause of centuries, which no lock can wait for."""
_STUCK_S = 30.0
"""A step that takes longer than this counts as wedged: the worker stops its heartbeats and loses its work."""
_JOIN_S = 5.0
"""Longest wait for the thread's last step when it is stopped."""
_RATE_DECAY = 0.8

T = TypeVar("T")
_Command = Callable[["PacedEngine"], None]
Sink = Callable[[StepOutput | StepError], None]
BlockSink = Callable[[int, list[Payload]], None]
"""Takes the payloads of blocks `first…` of a prompt."""
log = structlog.get_logger()


class PacedEngine(Engine, Protocol):
    """An engine that may have nothing to do until some time."""

    def next_due(self) -> float | None:
        """Monotonic seconds at which `has_work` turns True by itself; None if it will not."""


@dataclass(slots=True)
class _Export:
    """Blocks of a prompt that leave the engine as they are computed."""

    first: int
    """The next one."""
    last: int
    sink: BlockSink


_Exported = tuple[BlockSink, int, list[Payload]]


class EngineDriver:
    """One engine, one thread."""

    def __init__(self, engine: PacedEngine, name: str) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._computed: dict[str, int] = {}
        """Prompt tokens computed so far of the sequences that still compute; the engine thread's own."""
        self._exports: dict[str, _Export] = {}
        """The engine thread's own."""
        metrics.MAP_SIZE.labels(name=f"engine_{name}").set_function(lambda: len(self._sinks))
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"engine-{name}", daemon=True)
        self.block_tokens = engine.block_tokens
        self.max_context = engine.max_context
        self.failed = asyncio.Event()
        """Set when the engine broke as a whole: the worker must end."""
        self.pressure: Pressure = engine.pressure()
        """Load after the last step or command."""
        self.rate = 0.0
        """Tokens computed per second of stepping, prompt and generated alike; decays over steps."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its current step."""
        self._commands.put(None)
        self._thread.join(timeout=_JOIN_S)

    def is_alive(self) -> bool:
        """Whether the engine makes progress: its thread runs and no step takes for ever."""
        began = self._step_began
        return self._thread.is_alive() and (began is None or time.monotonic() - began < _STUCK_S)

    async def call(self, run: Callable[[PacedEngine], T]) -> T:
        """Run `run(engine)` on the engine's thread between two steps and return its result."""
        done: Future[T] = Future()

        def work(engine: PacedEngine) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(run(engine))
            except Exception as error:  # noqa: BLE001  # whatever a command raises belongs to its caller
                done.set_exception(error)

        self._commands.put(work)
        return await asyncio.wrap_future(done)

    def num_local(self, block_keys: Sequence[str]) -> int:
        """How many leading blocks the engine has, at a glance from outside: by the time it counts, it may be fewer.

        The engine's look-up only reads; waiting for its step to end would cost more than a wrong guess.
        """
        return self._engine.num_local(block_keys)

    async def add(
        self,
        spec: SequenceSpec,
        sink: Sink,
        blocks: Sequence[Payload] = (),
        first_block: int = 0,
        *,
        first_export: int = 0,
        on_blocks: BlockSink | None = None,
    ) -> None:
        """Queue a sequence; `sink` is called on the loop with every output. Raises ValueError as the engine does.

        `on_blocks` is called with the keyed prompt blocks from `first_export` on, as they are computed and before the
        output that tells of it. Whatever this raises, a cancel included, nothing of the sequence is left.
        """
        if spec.id in self._sinks:
            raise ValueError(f"id {spec.id!r} is in use")
        self._sinks[spec.id] = sink

        def add(engine: PacedEngine) -> None:
            engine.add(spec, blocks, first_block)
            if on_blocks is not None:
                self._exports[spec.id] = _Export(first_export, len(spec.block_keys), on_blocks)

        try:
            await self.call(add)
        except BaseException:
            self.release(spec.id)
            raise

    def release(self, id: str) -> None:  # noqa: A002  # the engine contract's word
        """Forget a sequence in any state; no output arrives after this. Does not wait for the engine."""
        self._sinks.pop(id, None)

        def work(engine: PacedEngine) -> None:
            self._computed.pop(id, None)
            self._exports.pop(id, None)
            engine.release(id)

        self._commands.put(work)

    @property
    def num_sinks(self) -> int:
        """Sequences somebody listens to."""
        return len(self._sinks)

    def _work(self) -> None:
        try:
            while self._run_commands():
                if self._engine.has_work():
                    self._step()
        except Exception:  # an engine that broke as a whole must take its worker down
            log.exception("engine_failed")
            self._loop.call_soon_threadsafe(self.failed.set)

    def _run_commands(self) -> bool:
        """Run what is queued; wait for the next command while there is nothing to compute. False: stop."""
        while True:
            try:
                command = self._next_command()
            except queue.Empty:
                return True
            if command is None:
                return False
            command(self._engine)
            self._look()

    def _next_command(self) -> _Command | None:
        if self._engine.has_work():
            return self._commands.get_nowait()
        due = self._engine.next_due()
        if due is None:
            return self._commands.get()
        return self._commands.get(timeout=min(max(0.0, due - time.monotonic()), _LONGEST_WAIT_S))

    def _step(self) -> None:
        self._step_began = began = time.monotonic()
        outputs: Sequence[StepOutput | StepError]
        try:
            outputs = self._engine.step()
        except StepError as error:
            outputs = [error]
        self._step_began = None
        seconds = time.monotonic() - began
        metrics.STEP_SECONDS.observe(seconds)
        num_tokens = sum(self._num_new(output) for output in outputs if isinstance(output, StepOutput))
        if num_tokens and seconds > 0:
            self.rate = _RATE_DECAY * self.rate + (1 - _RATE_DECAY) * num_tokens / seconds
        self._look()
        if outputs:
            self._loop.call_soon_threadsafe(self._deliver, outputs, self._export(outputs))

    def _export(self, outputs: Sequence[StepOutput | StepError]) -> list[_Exported]:
        """Copy out the blocks that the step completed, while nobody can take them away."""
        exported: list[_Exported] = []
        for output in outputs:
            export = self._exports.get(output.id)
            if export is None or isinstance(output, StepError):
                continue
            first, last = export.first, min(export.last, output.num_computed // self.block_tokens)
            if last > first:
                export.first = last
                exported.append((export.sink, first, self._engine.export(output.id, first, last)))
        return exported

    def _num_new(self, output: StepOutput) -> int:
        """Tokens a step computed for one sequence: generated ones, and those of the prompt that were not found."""
        num_computed = output.num_computed - output.num_cached
        num_prompt = max(0, num_computed - self._computed.get(output.id, 0))
        if output.cause is None:
            self._computed[output.id] = num_computed
        else:
            self._computed.pop(output.id, None)
        return num_prompt + len(output.tokens)

    def _look(self) -> None:
        self.pressure = pressure = self._engine.pressure()
        metrics.KV_BLOCKS_USED.set(pressure.used_blocks)

    def _deliver(self, outputs: Sequence[StepOutput | StepError], exported: Sequence[_Exported] = ()) -> None:
        for take, first, payloads in exported:
            take(first, payloads)
        for output in outputs:
            sink = self._sinks.get(output.id)
            if sink is None:
                continue
            try:
                sink(output)
            except Exception:  # one request's bug must not cost the others of the batch their tokens
                log.exception("sink_failed", sequence=output.id)
