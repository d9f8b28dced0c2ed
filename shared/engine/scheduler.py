"""Which sequences compute how many tokens in the next step, and which blocks they use. Integers only, no tensors.

Continuous batching. Sequences are admitted in order of arrival with blocks for all tokens they have; a waiting sequence
holds no blocks, so nobody holds blocks while waiting for more. When the blocks run out, the youngest running sequence
gives all of its back and is computed again later; it keeps its tokens, so nothing is generated or reported twice.
Because the oldest is never preempted by a younger one and every admitted sequence fits alone, someone always advances.

A step is as large as its measured pace allows: prompts beside generated rows take no longer than the rows themselves.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Run
from typing import NamedTuple

from headrace.shared.engine import Pressure, StepOutput
from headrace.shared.engine.blocks import BlockPool
from headrace.shared.engine.budget import share
from headrace.shared.engine.ledger import Import, Ledger
from headrace.shared.engine.pace import Pace
from headrace.shared.engine.sequence import Sequence, Status

_IMPORTS_PER_STEP = 64
"""Blocks written into the pool between two steps at most: running streams wait for it."""
_NEAR_TOKENS = 1024
"""Up to here a prompt's tokens take about the same time each."""


class Work(NamedTuple):
    """One entry of a step's plan: compute the next `num_tokens` tokens of `sequence`."""

    sequence: Sequence
    num_tokens: int


class Scheduler:
    """Owns the queues and the block pool of one engine."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_tokens: int,
        step_tokens: int,
        max_batch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` times steps, from `plan` to `commit`."""
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._ledger = Ledger(self._pool, block_tokens)
        self._step_tokens = step_tokens
        # With a token for every running sequence in each step, no generated row ever waits for another.
        self._max_running = min(max_batch, step_tokens)
        self._held: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """In order of arrival, and all of them arrived before those waiting."""
        self._ended: list[Sequence] = []
        """Finished without computing anything, not reported yet."""
        self._num_imports_left = _IMPORTS_PER_STEP
        self._clock = clock
        self._pace = Pace()
        self._planned_at = 0.0

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Admitted, unfinished sequences, oldest first."""
        return tuple(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError if its id is in use or if it could never fit."""
        if sequence.id in self._held:
            raise ValueError(f"id {sequence.id!r} is in use")
        num_most = sequence.num_prompt + sequence.spec.max_new
        num_blocks = self._ledger.num_blocks(min(num_most, sequence.max_context))
        if num_blocks > self._pool.num_blocks:
            raise ValueError(f"{num_blocks} blocks of KV do not fit in {self._pool.num_blocks}")
        self._held[sequence.id] = sequence
        if sequence.ending():
            self._finish(sequence)
            self._ended.append(sequence)
        else:
            self._waiting.append(sequence)

    def release(self, id: str) -> None:  # noqa: A002  # the contract's own word for a sequence id
        """Forget a sequence in whatever state; unknown ids are fine."""
        sequence = self._held.pop(id, None)
        if sequence is None:
            return
        for queue in (self._waiting, self._running, self._ended):
            if sequence in queue:
                queue.remove(sequence)
        self._ledger.close(sequence)

    def fail(self, id: str) -> None:  # noqa: A002
        """Never compute a running sequence again; it stays held until it is released."""
        sequence = self._held[id]
        self._running.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.cause = "error"

    def admit(self, import_block: Import) -> None:
        """Start waiting sequences while there is room, and write a portion of what they bring along through
        `import_block`: what is left follows after the next step, and its sequence with it.
        """
        while self._waiting and self._can_admit(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._ledger.open(sequence)
            sequence.status = Status.RUNNING
            self._running.append(sequence)
        for sequence in self._running:
            self._num_imports_left -= self._ledger.bring_in(sequence, import_block, self._num_imports_left)

    def plan(self, skipping: Collection[str] = ()) -> list[Work]:
        """Choose the work of one step, leaving out the ids `skipping`: generated rows first, the rest of the budget
        to prompts. May preempt, which loses no tokens.
        """
        self._planned_at = self._clock()
        self._num_imports_left = _IMPORTS_PER_STEP
        for sequence in self.running:
            if sequence.status is Status.RUNNING:
                self._grow(sequence)
        ready = [one for one in self._running if one.id not in skipping and not one.payloads]
        work = [Work(sequence, sequence.num_pending) for sequence in ready if sequence.num_pending <= 1]
        prompts = self._without_doubles([sequence for sequence in ready if sequence.num_pending > 1])
        budget = self._pace.prompt_budget(len(work), self._step_tokens - len(work))
        shares = share(budget, [sequence.num_pending for sequence in prompts])
        # A prompt whose last blocks were all found has nothing left to compute but its end to report.
        return work + [Work(*pair) for pair in zip(prompts, shares, strict=True) if pair[1] or not pair[0].num_pending]

    def commit(self, work: Run[Work], sampled: Mapping[str, Run[int]]) -> list[StepOutput]:
        """Record that `work` is computed and what was sampled for the sequences it brought to their target."""
        num_rows = sum(sequence.num_pending == 1 for sequence, _ in work)
        prompts = [entry for entry in work if entry.sequence.num_pending > 1]
        num_prompt = sum(entry.num_tokens for entry in prompts)
        is_far = any(entry.sequence.num_computed > _NEAR_TOKENS for entry in prompts)
        self._pace.observe(num_rows, num_prompt, self._clock() - self._planned_at, is_far=is_far)
        outputs = [_output(sequence, []) for sequence in self._ended]
        self._ended.clear()
        for sequence, num_tokens in work:
            self._ledger.advance(sequence, num_tokens)
            tokens = sequence.accept(sampled.get(sequence.id, ()))
            if sequence.ending():
                self._running.remove(sequence)
                self._finish(sequence)
            outputs.append(_output(sequence, tokens))
        return outputs

    def has_work(self) -> bool:
        """Whether a step could compute or report anything."""
        return bool(self._running) or self.can_start()

    def can_start(self) -> bool:
        """Whether the next step has an end to report or a sequence to admit."""
        return bool(self._ended) or (bool(self._waiting) and self._can_admit(self._waiting[0]))

    def num_local(self, block_keys: Run[str]) -> int:
        """How many leading keys are in the pool."""
        return len(self._pool.match(block_keys))

    def computed_blocks(self, id: str, first: int, last: int) -> list[int]:  # noqa: A002
        """The blocks [first, last) of a held sequence's prompt; raises ValueError if they are not all computed."""
        sequence = self._held.get(id)
        if sequence is None:
            raise ValueError(f"no sequence {id!r} is held")
        num_full = min(sequence.num_computed, sequence.num_prompt) // self.block_tokens
        if not 0 <= first <= last <= num_full:
            raise ValueError(f"blocks {first} to {last} asked for, {num_full} prompt blocks are computed")
        return sequence.blocks[first:last]

    def pressure(self) -> Pressure:
        """Current load."""
        pending = [sequence.num_pending for queue in (self._running, self._waiting) for sequence in queue]
        num_rows = sum(num <= 1 for num in pending)
        return Pressure(
            num_sequences=len(self._held),
            num_waiting=len(self._waiting),
            free_tokens=self._pool.num_free * self.block_tokens,
            total_tokens=self._pool.num_blocks * self.block_tokens,
            used_blocks=self._pool.num_held,
            prompt_tokens=sum(num for num in pending if num > 1),
            prompt_rate=self._pace.prompt_rate,
            token_rate=self._pace.token_rate(max(1, num_rows)),
        )

    def drop_cache(self) -> None:
        """Forget all blocks that no sequence holds."""
        self._pool.drop_cache()

    def check(self) -> None:
        """Assert the block accounting and that every sequence is where its status says."""
        self._pool.check(sequence.blocks for sequence in self._held.values())
        statuses = {sequence.id: sequence.status for sequence in self._held.values()}
        assert [statuses[sequence.id] for sequence in self._running] == [Status.RUNNING] * len(self._running)
        assert [statuses[sequence.id] for sequence in self._waiting] == [Status.WAITING] * len(self._waiting)
        assert not any(sequence.blocks for sequence in self._waiting)
        num_finished = sum(status is Status.FINISHED for status in statuses.values())
        assert num_finished + len(self._running) + len(self._waiting) == len(self._held)

    def _can_admit(self, sequence: Sequence) -> bool:
        if len(self._running) >= self._max_running:
            return False
        # Each running sequence may soon need one more block: without this margin the newcomer is preempted at once.
        return self._ledger.can_open(sequence, margin=len(self._running))

    def _finish(self, sequence: Sequence) -> None:
        sequence.cause = sequence.ending()
        sequence.status = Status.FINISHED

    def _grow(self, sequence: Sequence) -> None:
        """Give a running sequence the blocks its pending tokens need, or preempt it."""
        while not self._ledger.can_extend(sequence):
            youngest = self._running.pop()
            self._ledger.close(youngest)
            youngest.preempt()
            self._waiting.appendleft(youngest)
            if youngest is sequence:
                return
        self._ledger.extend(sequence)

    def _without_doubles(self, prompts: list[Sequence]) -> list[Sequence]:
        """Leave out whoever would compute a block that an older sequence is computing; it takes that block over
        once it is published. The oldest always stays, so somebody advances.
        """
        busy: set[str] = set()
        chosen = []
        for sequence in prompts:
            self._ledger.take_over(sequence)
            if sequence.awaited_key in busy:
                continue
            chosen.append(sequence)
            if sequence.current_key is not None:
                busy.add(sequence.current_key)
        return chosen


def _output(sequence: Sequence, tokens: list[int]) -> StepOutput:
    return StepOutput(
        id=sequence.id,
        tokens=tuple(tokens),
        num_computed=min(sequence.num_computed, sequence.num_prompt),
        num_cached=sequence.num_cached,
        cause=sequence.cause,
    )
