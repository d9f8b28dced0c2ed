"""From generated ids to records of the run log: one append outstanding, whatever came meanwhile goes into the next.

The first token travels alone; under load records grow by themselves. Text work happens here, off the engine's thread.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from headrace.shared import runlog
from headrace.shared.bus import Bus
from headrace.shared.messages import Sampling
from headrace.shared.packing import pack_ids
from headrace.shared.records import Cause, ChoiceChunk, ChoiceEnd, EndEvent, Event, PromptUsage, TextEvent, TokRecord
from headrace.shared.runlog import Lease
from headrace.shared.telemetry import metrics
from headrace.shared.text.pipeline import TextPipeline

_MOST_CHARS = 12 << 10
"""Text after which a record is full: 48 KiB of UTF-8 at most, and what one more token brings."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended."""

    cause: Cause
    match: str | int | None = None


class ChunkWriter:
    """Writes one choice to the log."""

    def __init__(
        self,
        bus: Bus,
        lease: Lease,
        pipeline: TextPipeline,
        sampling: Sampling,
        *,
        generated: Sequence[int],
        chunk_tokens: int,
    ) -> None:
        """`generated` are the ids already logged; `pipeline` has replayed them."""
        self._bus = bus
        self._lease = lease
        self._pipeline = pipeline
        self._sampling = sampling
        self._ids = list(generated)
        self._chunk_tokens = chunk_tokens
        self._pending: deque[int] = deque()
        self._cause: Cause | None = None
        self._is_stopped = False
        self._news = asyncio.Event()
        self._head: PromptUsage | None = None
        self._prompt_ids: bytes | None = None

    @property
    def num_logged(self) -> int:
        """Generated ids in the log."""
        return len(self._ids)

    def announce(self, prompt: PromptUsage, prompt_ids: bytes | None) -> None:
        """Put prompt usage in the next record: once, in the first record of a request."""
        self._head, self._prompt_ids = prompt, prompt_ids

    def feed(self, tokens: Sequence[int], cause: Cause | None) -> None:
        """Add generated ids; `cause` ends the choice."""
        self._pending += tokens
        self._cause = cause
        self._news.set()

    def stop(self) -> None:
        """Let `write_all` return after its current append: an append that was cancelled has an unknown outcome."""
        self._is_stopped = True
        self._news.set()

    async def write_all(self) -> Ending | None:
        """Append records until the choice ends; None when stopped before. Raises FencedError when the lease is lost."""
        while not self._is_stopped:
            await self._news.wait()
            self._news.clear()
            while (self._pending or self._cause is not None) and not self._is_stopped:
                ending = await self._write_one()
                if ending is not None:
                    return ending
        return None

    async def flush(self) -> Ending | None:
        """Append what is pending, before a hand-over; an ending that shows up counts."""
        while self._pending or self._cause is not None:
            ending = await self._write_one()
            if ending is not None:
                return ending
        return None

    def summary(self, ending: Ending) -> ChoiceEnd:
        """The choice's line in the terminal record."""
        return ChoiceEnd(i=0, n=len(self._ids), cause=ending.cause, match=ending.match)

    def digest(self) -> bytes:
        """Checksum over all ids."""
        return blake2b(pack_ids(self._ids), digest_size=16).digest()

    async def _write_one(self) -> Ending | None:
        batch, events = self._cut()
        ending = None
        if self._pipeline.match is not None or (self._cause is not None and not self._pending):
            events += self._pipeline.finish(self._cause or "stop")
            end = events[-1]
            assert isinstance(end, EndEvent)
            ending = Ending(end.cause, end.match)
        chunk = ChoiceChunk(i=0, o=len(self._ids), t=pack_ids(batch), ev=tuple(events), state=self._pipeline.state)
        record = TokRecord(choices=(chunk,), prompt=self._head, prompt_ids=self._prompt_ids)
        await runlog.append(self._bus, self._lease, record)
        self._head = self._prompt_ids = None
        self._ids += batch
        metrics.COMPLETION_TOKENS_TOTAL.inc(len(batch))
        return ending

    def _cut(self) -> tuple[list[int], list[Event]]:
        """Take one record's worth of pending ids, with their text: up to a stop, a full record or the last id."""
        batch: list[int] = []
        text = ""
        while self._pending and len(batch) < self._chunk_tokens and len(text) < _MOST_CHARS:
            token = self._pending.popleft()
            batch.append(token)
            if self._is_end_token(token):
                continue
            text += "".join(event.s for event in self._pipeline.push([token]) if isinstance(event, TextEvent))
            if self._pipeline.match is not None:
                break
        return batch, [TextEvent(text)] if text else []

    def _is_end_token(self, token: int) -> bool:
        """The last id of a choice that the model ended: counted, never shown, not even when special tokens are."""
        return self._cause == "eos" and not self._pending and token not in self._sampling.stop_ids
