"""One request on this worker, from the lease to the terminal record.

One of four things happens to a request here: it ends (`DONE`), it moves on to another worker (`MOVED`), it turns out to
be somebody else's (`LOST`), or this process dies, which the router notices.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from headrace.decode.claim import Claim
from headrace.decode.sampling import resolve
from headrace.decode.stream import ChunkWriter, Ending
from headrace.decode.terms import Outcome, Settings, Signals
from headrace.shared import runlog
from headrace.shared.bus import Bus
from headrace.shared.engine import SequenceSpec, StepError, StepOutput
from headrace.shared.engine.scripted import extra_tokens
from headrace.shared.errors import Code, Failure, FencedError
from headrace.shared.messages import Tokenized
from headrace.shared.packing import unpack_ids
from headrace.shared.records import FinRecord, PromptUsage
from headrace.shared.serving import Served
from headrace.shared.telemetry import metrics
from headrace.shared.text.model import TextModel
from headrace.shared.text.pipeline import TextPipeline

log = structlog.get_logger()

_WORTH_STORING_S = 0.1
"""A prompt computed in less is not put in the store from here: that costs every prompt what it may save one."""
_CANCELLED = "the request was cancelled"
_TOO_LONG = "the request took longer than its total timeout"
_FORKED = "the text so far cannot be continued by this version"


def is_worth_storing(num_tokens: int, prompt_rate: float) -> bool:
    """Whether somebody else would save time by finding a prompt's blocks; so while no rate is known (0)."""
    return not prompt_rate or num_tokens / prompt_rate >= _WORTH_STORING_S


class Run:
    """Runs one claimed request."""

    def __init__(
        self, bus: Bus, item: Tokenized, claim: Claim, served: Served, text: TextModel, settings: Settings
    ) -> None:
        self._bus = bus
        self._item = item
        self._claim = claim
        self._served = served
        self._settings = settings
        self._generated = claim.generated
        self._error: StepError | None = None
        self._broken = asyncio.Event()
        self._prompt = claim.log.prompt
        sampling = item.request.sampling
        extra = extra_tokens(item.request.script, 0) if item.request.script is not None else {}
        self._ids = unpack_ids(item.prompt_ids)
        self._pipeline = TextPipeline(text.tokenizer, sampling, extra, prompt=self._ids)
        self._pipeline.replay(self._generated)
        self._is_forked = not claim.agrees_with(self._pipeline.state)
        self._fed_at: float | None = None
        """Monotonic time of this lease's newest token."""
        self._writer = ChunkWriter(
            bus,
            claim.lease,
            self._pipeline,
            sampling,
            generated=self._generated,
            chunk_tokens=settings.chunk_tokens,
        )
        self._text = text

    @property
    def tokens_left(self) -> int:
        """Tokens of work left: what the router counts as load."""
        return max(0, (self._item.request.max_new or 0) - self._writer.num_logged)

    @property
    def has_begun(self) -> bool:
        """Whether this lease has generated anything: its prompt is computed then."""
        return self._fed_at is not None

    async def execute(self, signals: Signals) -> Outcome:
        """Generate until the request ends or has to leave this worker."""
        try:
            return await self._execute(signals)
        except FencedError:
            metrics.FENCED_PUBLISHES_TOTAL.inc()
            log.info("lease_lost", request=self._item.request.rid)
            return Outcome.LOST
        finally:
            self._served.driver.release(self._engine_id)

    @property
    def _engine_id(self) -> str:
        return f"{self._item.request.rid}:{self._claim.lease.seq}"

    async def _execute(self, signals: Signals) -> Outcome:
        request = self._item.request
        if self._claim.log.cancel is not None or signals.cancelled.is_set():
            return await self._fail(Code.CANCELLED, _CANCELLED)
        end = self._claim.end
        if end is not None:
            return await self._finish(Ending(end.cause, end.match))
        if self._is_forked:
            log.error("replay_differs", request=request.rid, num_tokens=len(self._generated))
            return await self._fail(Code.INTERNAL, _FORKED)
        if (request.max_new or 0) <= len(self._generated):
            return await self._finish(await self._end_of_log())
        if signals.remaining_s(request.deadlines.total_s) <= 0:
            return await self._fail(Code.TIMEOUT, _TOO_LONG)
        try:
            await self._start()
        except ValueError as error:
            log.warning("request_refused_by_engine", request=request.rid, reason=str(error))
            return await self._fail(Code.INVALID_REQUEST, f"the engine refuses the request: {error}")
        return await self._generate(signals)

    async def _end_of_log(self) -> Ending:
        """The end of a choice whose tokens are all logged already, or that may have none."""
        ending = Ending("length")
        if self._generated:
            self._writer.feed((), ending.cause)
            return await self._writer.flush() or ending
        return ending

    async def _start(self) -> None:
        """Queue the sequence on top of the blocks that exist. Raises ValueError as the engine does."""
        request = self._item.request
        ids = self._ids
        # The last prompt token is always computed here: its logits are where generation starts. A prompt that came past
        # the prefill stage may be in the store all the same, and is put there for those who come after.
        is_direct = self._item.cached is None
        num_wanted = (
            min(len(ids) if is_direct else self._item.prefilled, len(ids) - 1) // self._served.driver.block_tokens
        )
        keys = self._served.blocks.keys(request, ids)
        defaults = {**self._text.default_sampling, **self._settings.default_sampling}
        stop_ids = frozenset(request.sampling.stop_ids)
        if not request.sampling.ignore_eos:
            stop_ids |= self._text.eos_ids
        spec = SequenceSpec(
            id=self._engine_id,
            prompt=ids,
            max_new=request.max_new or 0,
            sampling=resolve(request.sampling, defaults),
            generated=self._generated,
            block_keys=keys,
            stop_ids=stop_ids,
            script=request.script,
            attempt=self._claim.lease.attempt,
        )
        wants_blocks = (
            is_direct
            and self._served.blocks.is_healthy()
            and is_worth_storing(len(ids), self._served.driver.pressure.prompt_rate)
        )
        publish = partial(self._served.blocks.publish, keys) if wants_blocks else None
        await self._served.add(spec, self._take, num_wanted=num_wanted, on_blocks=publish)

    def _take(self, output: StepOutput | StepError) -> None:
        if isinstance(output, StepError):
            self._error = output
            self._broken.set()
            return
        if self._prompt is None and (output.tokens or output.cause is not None):
            self._announce(output.num_cached)
        if output.tokens or output.cause is not None:
            self._fed_at = time.monotonic()
            self._writer.feed(output.tokens, output.cause)

    def _announce(self, num_cached: int) -> None:
        size = self._served.driver.block_tokens
        # The block that holds the last prompt token is computed here whatever the cache has: its logits are needed.
        most = (len(self._ids) - 1) // size * size
        cached = min(most, num_cached if self._item.cached is None else self._item.cached)
        self._prompt = PromptUsage(prompt_tokens=len(self._ids), cached_tokens=cached)
        metrics.KV_HIT_TOKENS_TOTAL.inc(cached)
        wants_ids = self._item.request.return_token_ids
        self._writer.announce(self._prompt, self._item.prompt_ids if wants_ids else None)

    async def _generate(self, signals: Signals) -> Outcome:
        writing = asyncio.ensure_future(self._writer.write_all())
        events = [asyncio.ensure_future(e.wait()) for e in (signals.cancelled, signals.draining, self._broken)]
        try:
            await self._until_settled([writing, *events], signals)
            self._served.driver.release(self._engine_id)
            self._writer.stop()
            ending = await writing
        finally:
            for task in (writing, *events):
                task.cancel()
            await asyncio.gather(writing, *events, return_exceptions=True)
        return await (self._interrupted(signals) if ending is None else self._finish(ending))

    async def _until_settled(self, tasks: Sequence["asyncio.Future[Any]"], signals: Signals) -> None:
        """Wait until one of `tasks` is done, the request's time is over or it has stalled."""
        while True:
            timeout = max(0.0, self._patience_s(signals))
            done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if done or self._patience_s(signals) <= 0:
                return

    def _patience_s(self, signals: Signals) -> float:
        """Seconds until the total or the stall deadline. Stall counts from the first token of this lease."""
        limits = self._item.request.deadlines
        total = signals.remaining_s(limits.total_s)
        now = time.monotonic()
        return min(total, (self._fed_at or now) + limits.stall_s - now)

    async def _interrupted(self, signals: Signals) -> Outcome:
        if self._error is not None:
            log.warning("generation_failed", request=self._item.request.rid, reason=str(self._error))
            return await self._fail(Code.INTERNAL, "the model failed on this request")
        if signals.cancelled.is_set():
            return await self._fail(Code.CANCELLED, _CANCELLED)
        if signals.draining.is_set() or signals.remaining_s(self._item.request.deadlines.total_s) > 0:
            return await self._hand_over()
        return await self._fail(Code.TIMEOUT, _TOO_LONG)

    async def _hand_over(self) -> Outcome:
        ending = await self._writer.flush()
        if ending is not None:
            return await self._finish(ending)
        await runlog.release(self._bus, self._claim.lease, self._settings.wid)
        return Outcome.MOVED

    async def _finish(self, ending: Ending) -> Outcome:
        return await self._write_fin(ending, None)

    async def _fail(self, code: Code, message: str) -> Outcome:
        cause: Ending = Ending("cancelled" if code is Code.CANCELLED else "error")
        return await self._write_fin(cause, Failure(code=code, message=message))

    async def _write_fin(self, ending: Ending, failure: Failure | None) -> Outcome:
        prompt = self._prompt or PromptUsage(prompt_tokens=len(self._ids), cached_tokens=self._item.cached or 0)
        record = FinRecord(
            choices=(self._writer.summary(ending),),
            prompt=prompt,
            failure=failure,
            digest=self._writer.digest(),
            attempts=self._claim.lease.attempt,
        )
        if not await runlog.finish(self._bus, self._claim.lease, record):
            return Outcome.LOST
        log.info(
            "request_finished",
            request=self._item.request.rid,
            attempt=self._claim.lease.attempt,
            cause=ending.cause,
            num_tokens=self._writer.num_logged,
        )
        return Outcome.DONE
