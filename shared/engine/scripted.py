"""The engine of the `scripted` model: plays what the request says instead of computing, behind the same contract.

Scheduling, blocks, caching and preemption are the real ones; only the forward pass is missing. Token ids: 0–255 bytes,
then BOS, EOS, `<think>`, `</think>`, `<tool_call>`, `</tool_call>`; 1000 and up are the texts of a script. The KV of a
block is the packed ids of its tokens, so that a block of another prompt is refused instead of used.
"""

import os
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Run

from headrace.shared.engine import Payload, Pressure, SequenceSpec, StepError, StepOutput
from headrace.shared.engine.player import EOS, FIRST_TEXT_ID, VOCAB_SIZE, FaultKind, Player, compose, steps_of
from headrace.shared.engine.scheduler import Scheduler
from headrace.shared.engine.sequence import Sequence
from headrace.shared.messages import Script
from headrace.shared.packing import pack_ids

__all__ = ["EOS", "VOCAB_SIZE", "ScriptedEngine", "extra_tokens"]

_STEP_TOKENS = 1 << 30
"""Computing costs nothing here: every prompt is done in one step."""
_EXIT_CODE = 9


def extra_tokens(script: Script, choice: int) -> dict[int, bytes]:
    """The ids that one choice's text steps emit, with what they stand for."""
    steps = enumerate(steps_of(script, choice), FIRST_TEXT_ID)
    return {token: step.text.encode() for token, step in steps if step.text is not None}


def break_process(kind: FaultKind) -> None:
    """Die at once, or block this thread for ever."""
    if kind == "exit":
        os._exit(_EXIT_CODE)
    threading.Event().wait()


class ScriptedEngine:
    """See the contract in the package. `kv_tokens` limits the pool, by default it never runs out."""

    def __init__(
        self,
        *,
        block_tokens: int = 16,
        max_context: int = 8192,
        max_batch: int = 256,
        kv_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
        fault: Callable[[FaultKind], None] = break_process,
    ) -> None:
        blocks_per_context = -(-max_context // block_tokens)
        num_blocks = kv_tokens // block_tokens if kv_tokens is not None else max_batch * blocks_per_context
        self.block_tokens = block_tokens
        self.max_context = min(max_context, num_blocks * block_tokens)
        self._scheduler = Scheduler(
            num_blocks, block_tokens=block_tokens, step_tokens=_STEP_TOKENS, max_batch=max_batch
        )
        self._clock = clock
        self._entropy = entropy
        self._fault = fault
        self._prompts: dict[str, Run[int]] = {}
        self._players: dict[str, Player] = {}

    def add(self, spec: SequenceSpec, blocks: Run[Payload] = (), first_block: int = 0) -> None:
        """Queue a sequence; a payload that holds other ids than the prompt's raises ValueError."""
        score = compose(spec.script, spec.sampling.choice, spec.prompt)
        sequence = Sequence(
            spec, block_tokens=self.block_tokens, max_context=self.max_context, num_stop_free=score.num_stop_free
        )
        if min(spec.prompt) < 0 or max(spec.prompt) >= VOCAB_SIZE:
            raise ValueError(f"a prompt id is outside the vocabulary of {VOCAB_SIZE}")
        sequence.bring(blocks, first_block)
        for index, payload in sequence.payloads.items():
            if payload != self._payload(spec.prompt, index):
                raise ValueError(f"block {index} holds other tokens than the prompt")
        self._scheduler.add(sequence)
        self._prompts[spec.id] = spec.prompt
        self._players[spec.id] = Player(
            score, attempt=spec.attempt, num_played=len(spec.generated), entropy=self._entropy
        )
        self._scheduler.admit(_keep_nothing)

    def num_local(self, block_keys: Run[str]) -> int:
        """How many leading blocks of these keys are in this engine already."""
        return self._scheduler.num_local(block_keys)

    def export(self, id: str, first: int, last: int) -> list[Payload]:  # noqa: A002  # the contract's own word
        """Payloads of prompt blocks [first, last); raises ValueError if they are not all computed."""
        self._scheduler.computed_blocks(id, first, last)
        return [self._payload(self._prompts[id], index) for index in range(first, last)]

    def step(self) -> list[StepOutput]:
        """Play up to 64 tokens of every sequence that is not paused."""
        self._scheduler.admit(_keep_nothing)
        paused = self._poll(self._clock())
        plan = self._scheduler.plan(skipping=paused)
        sampled = {
            sequence.id: self._players[sequence.id].take()
            for sequence, num_tokens in plan
            if num_tokens == sequence.num_pending and not sequence.is_prefill
        }
        return self._scheduler.commit(plan, sampled)

    def release(self, id: str) -> None:  # noqa: A002
        """Forget a sequence."""
        self._scheduler.release(id)
        self._prompts.pop(id, None)
        self._players.pop(id, None)

    def has_work(self) -> bool:
        """Whether `step` would play or report something; False while everything pauses."""
        now = self._clock()
        return self._scheduler.can_start() or any(not player.is_paused(now) for player in self._running())

    def next_due(self) -> float | None:
        """When the first pause ends, on the engine's clock; None if work is there already or none is to come."""
        dues = [player.due for player in self._running()]
        known = [due for due in dues if due is not None]
        if self._scheduler.can_start() or not known or len(known) < len(dues):
            return None
        return min(known)

    def pressure(self) -> Pressure:
        """Current load."""
        return self._scheduler.pressure()

    def drop_cache(self) -> None:
        """Forget all blocks that no sequence holds."""
        self._scheduler.drop_cache()

    def check(self) -> None:
        """Assert the block accounting."""
        self._scheduler.check()

    def _running(self) -> list[Player]:
        return [self._players[sequence.id] for sequence in self._scheduler.running]

    def _poll(self, now: float) -> set[str]:
        """Let pauses begin and end and break where a fault is due, before anything of the step has happened."""
        paused = set()
        for sequence in self._scheduler.running:
            player = self._players[sequence.id]
            kind = None if sequence.is_prefill else player.poll(now)
            if kind == "raise":
                self._scheduler.fail(sequence.id)
                raise StepError(sequence.id, "the script says so")
            if kind is not None:
                self._fault(kind)
            if player.is_paused(now):
                paused.add(sequence.id)
        return paused

    def _payload(self, prompt: Run[int], index: int) -> bytes:
        first = index * self.block_tokens
        return pack_ids(prompt[first : first + self.block_tokens])


def _keep_nothing(block: int, payload: Payload) -> None:
    """A scripted block has no content beyond the ids its sequence knows."""
    del block, payload
