"""Which sequences compute how many tokens in the next step, and which blocks they use. Integers only, no tensors.

Continuous batching. Sequences are admitted in order of arrival with blocks for all tokens they have; a waiting sequence
holds no blocks, so nobody holds blocks while waiting for more. When the blocks run out, the youngest running sequence
gives all of its back and is computed again later; it keeps its tokens, so nothing is generated or reported twice.
Because the oldest is never preempted by a younger one and every admitted sequence fits alone, someone always advances.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Run
from typing import NamedTuple

from headrace.shared.engine import Pressure, StepOutput
from headrace.shared.engine.blocks import BlockPool
from headrace.shared.engine.budget import share
from headrace.shared.engine.sequence import Sequence, Status


class Work(NamedTuple):
    """One entry of a step's plan: compute the next `num_tokens` tokens of `sequence`."""

    sequence: Sequence
    num_tokens: int


class Scheduler:
    """Owns the queues and the block pool of one engine."""

    def __init__(self, num_blocks: int, *, block_tokens: int, step_tokens: int, max_batch: int) -> None:
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._step_tokens = step_tokens
        # With a token for every running sequence in each step, no generated row ever waits for another.
        self._max_running = min(max_batch, step_tokens)
        self._held: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """In order of arrival, and all of them arrived before those waiting."""
        self._ended: list[Sequence] = []
        """Finished without computing anything, not reported yet."""

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Admitted, unfinished sequences, oldest first."""
        return tuple(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError if its id is in use or if it could never fit."""
        if sequence.id in self._held:
            raise ValueError(f"id {sequence.id!r} is in use")
        num_most = sequence.num_prompt + sequence.spec.max_new
        num_blocks = self._num_blocks(min(num_most, sequence.max_context))
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
        self._pool.release(sequence.blocks)

    def fail(self, id: str) -> None:  # noqa: A002
        """Never compute a running sequence again; it stays held until it is released."""
        sequence = self._held[id]
        self._running.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.cause = "error"

    def admit(self, import_block: Callable[[int, bytes], None]) -> None:
        """Start waiting sequences while there is room, writing what they bring along through `import_block`."""
        while self._waiting and self._can_admit(self._waiting[0]):
            self._start(self._waiting.popleft(), import_block)

    def plan(self, skipping: Collection[str] = ()) -> list[Work]:
        """Choose the work of one step, leaving out the ids `skipping`: generated rows first, the rest of the budget
        to prompts. May preempt, which loses no tokens.
        """
        for sequence in self.running:
            if sequence.status is Status.RUNNING:
                self._grow(sequence)
        ready = [sequence for sequence in self._running if sequence.id not in skipping]
        work = [Work(sequence, sequence.num_pending) for sequence in ready if sequence.num_pending <= 1]
        prompts = self._without_doubles([sequence for sequence in ready if sequence.num_pending > 1])
        shares = share(self._step_tokens - len(work), [sequence.num_pending for sequence in prompts])
        # A prompt whose last blocks were all found has nothing left to compute but its end to report.
        return work + [Work(*pair) for pair in zip(prompts, shares, strict=True) if pair[1] or not pair[0].num_pending]

    def commit(self, work: Run[Work], sampled: Mapping[str, Run[int]]) -> list[StepOutput]:
        """Record that `work` is computed and what was sampled for the sequences it brought to their target."""
        outputs = [_output(sequence, []) for sequence in self._ended]
        self._ended.clear()
        for sequence, num_tokens in work:
            self._advance(sequence, num_tokens)
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
        return Pressure(
            num_sequences=len(self._held),
            num_waiting=len(self._waiting),
            free_tokens=self._pool.num_free * self.block_tokens,
            total_tokens=self._pool.num_blocks * self.block_tokens,
            used_blocks=self._pool.num_held,
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

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def _hits(self, sequence: Sequence) -> list[int]:
        return self._pool.match(sequence.spec.block_keys[: sequence.num_reusable])

    def _can_admit(self, sequence: Sequence) -> bool:
        if len(self._running) >= self._max_running:
            return False
        hits = self._hits(sequence)
        num_fresh = self._num_blocks(sequence.num_target) - len(hits)
        # Each running sequence may soon need one more block: without this margin the newcomer is preempted at once.
        return self._pool.can_allocate(num_fresh + len(self._running), reusing=hits)

    def _start(self, sequence: Sequence, import_block: Callable[[int, bytes], None]) -> None:
        hits = self._hits(sequence)
        self._pool.acquire(hits)  # before allocating, which could evict them
        sequence.blocks = hits + self._pool.allocate(self._num_blocks(sequence.num_target) - len(hits))
        sequence.status = Status.RUNNING
        self._running.append(sequence)
        num_ready = len(hits)
        sequence.num_computed = num_ready * self.block_tokens
        while num_ready < sequence.num_reusable and num_ready in sequence.payloads:
            import_block(sequence.blocks[num_ready], sequence.payloads[num_ready])
            self._advance(sequence, self.block_tokens)
            num_ready += 1
        sequence.payloads = {}
        sequence.count_cached(sequence.num_computed)

    def _finish(self, sequence: Sequence) -> None:
        sequence.cause = sequence.ending()
        sequence.status = Status.FINISHED

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Move `num_computed` on and publish the keyed blocks that became complete."""
        first = sequence.num_computed // self.block_tokens
        sequence.num_computed += num_tokens
        keys = sequence.spec.block_keys
        for index in range(first, min(sequence.num_computed // self.block_tokens, len(keys))):
            self._pool.publish(sequence.blocks[index], keys[index])

    def _grow(self, sequence: Sequence) -> None:
        """Give a running sequence the blocks its pending tokens need, or preempt it."""
        num_missing = self._num_blocks(sequence.num_target) - len(sequence.blocks)
        while num_missing > 0 and not self._pool.can_allocate(num_missing):
            youngest = self._running.pop()
            self._pool.release(youngest.blocks)
            youngest.preempt()
            self._waiting.appendleft(youngest)
            if youngest is sequence:
                return
        if num_missing > 0:
            sequence.blocks += self._pool.allocate(num_missing)

    def _without_doubles(self, prompts: list[Sequence]) -> list[Sequence]:
        """Leave out whoever would compute a block that an older sequence is computing; it takes that block over
        once it is published. The oldest always stays, so somebody advances.
        """
        busy: set[str] = set()
        chosen = []
        for sequence in prompts:
            self._take_over(sequence)
            if sequence.awaited_key in busy:
                continue
            chosen.append(sequence)
            if sequence.current_key is not None:
                busy.add(sequence.current_key)
        return chosen

    def _take_over(self, sequence: Sequence) -> None:
        """Replace blocks yet to be computed by blocks that others have published since."""
        while (key := sequence.awaited_key) is not None and (block := self._pool.lookup(key)) is not None:
            index = sequence.num_computed // self.block_tokens
            self._pool.acquire([block])
            self._pool.release([sequence.blocks[index]])
            sequence.blocks[index] = block
            sequence.num_computed += self.block_tokens
            sequence.count_cached(self.block_tokens)


def _output(sequence: Sequence, tokens: list[int]) -> StepOutput:
    return StepOutput(
        id=sequence.id,
        tokens=tuple(tokens),
        num_computed=min(sequence.num_computed, sequence.num_prompt),
        num_cached=sequence.num_cached,
        cause=sequence.cause,
    )
