"""One sequence's state as plain integers: its tokens, how far they are computed, its blocks, and when it ends.

`tokens` is the prompt followed by what was generated; the boundary never moves, whatever is recomputed:

    | prompt ……………………… | generated ……………… |
    0                num_prompt        len(tokens)
    |……… num_computed ………|—— num_pending ——|
"""

from collections.abc import Sequence as Run
from enum import Enum, auto

from headrace.shared.engine import Payload, SequenceSpec
from headrace.shared.records import Cause


class Status(Enum):
    """Where a sequence is: RUNNING alone may be computed, WAITING alone holds no blocks."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """State of one sequence. Raises ValueError for a spec that no engine of this context could run."""

    __slots__ = (
        "_num_stop_free", "block_tokens", "blocks", "cause", "id", "max_context", "num_cached", "num_computed",
        "num_prompt", "payloads", "spec", "status", "tokens", "was_preempted",
    )  # fmt: skip

    def __init__(self, spec: SequenceSpec, *, block_tokens: int, max_context: int, num_stop_free: int = 0) -> None:
        """`num_stop_free` generated tokens are exempt from `stop_ids`."""
        self.id = spec.id
        self.spec = spec
        self.tokens = [*spec.prompt, *spec.generated]
        self.num_prompt = len(spec.prompt)
        self.block_tokens = block_tokens
        self.max_context = max_context
        self._num_stop_free = num_stop_free
        self.blocks: list[int] = []
        self.num_computed = 0
        self.num_cached = 0
        self.payloads: dict[int, Payload] = {}
        """Contents of prompt blocks computed elsewhere, by block number, until the sequence is admitted."""
        self.status = Status.WAITING
        self.was_preempted = False
        self.cause: Cause | None = None
        self._refuse_the_impossible()

    @property
    def num_generated(self) -> int:
        """Generated tokens, those of an earlier holder included."""
        return len(self.tokens) - self.num_prompt

    @property
    def is_prefill(self) -> bool:
        """Whether only the prompt's full blocks are wanted."""
        return self.spec.max_new == 0

    @property
    def num_target(self) -> int:
        """Tokens that must be computed before the next one can be sampled, or before a prefill is done."""
        if self.is_prefill:
            return self.num_prompt - self.num_prompt % self.block_tokens
        return len(self.tokens)

    @property
    def num_pending(self) -> int:
        """Tokens still to compute until `num_target`."""
        return self.num_target - self.num_computed

    @property
    def num_reusable(self) -> int:
        """Leading prompt blocks that need not be computed; the last known token always is, for its logits."""
        last = self.num_target if self.is_prefill else self.num_target - 1
        return min(last, self.num_prompt) // self.block_tokens

    @property
    def awaited_key(self) -> str | None:
        """Content key of the block at `num_computed`, if finding it would save computing it."""
        index, inside = divmod(self.num_computed, self.block_tokens)
        if inside or index >= self.num_reusable or index >= len(self.spec.block_keys):
            return None
        return self.spec.block_keys[index]

    @property
    def current_key(self) -> str | None:
        """Content key of the block that the next computed token belongs to."""
        index = self.num_computed // self.block_tokens
        return self.spec.block_keys[index] if index < len(self.spec.block_keys) else None

    def ending(self) -> Cause | None:
        """Why nothing more may be generated, judged by the tokens alone."""
        if self.num_generated > self._num_stop_free and self.tokens[-1] in self.spec.stop_ids:
            return "eos"
        if self.num_generated >= self.spec.max_new:
            return None if self.is_prefill and self.num_pending else "length"
        return "context" if len(self.tokens) >= self.max_context else None

    def accept(self, tokens: Run[int]) -> list[int]:
        """Append as many of the sampled tokens as belong to the sequence and return them.

        The run is cut after the first stop id and at the token and context limits, as if it came one by one.
        """
        room = min(self.spec.max_new - self.num_generated, self.max_context - len(self.tokens))
        accepted = list(tokens[:room])
        exempt = max(0, self._num_stop_free - self.num_generated)
        if not self.spec.stop_ids.isdisjoint(accepted[exempt:]):
            stop = next(i for i in range(exempt, len(accepted)) if accepted[i] in self.spec.stop_ids)
            del accepted[stop + 1 :]
        self.tokens += accepted
        return accepted

    def bring(self, blocks: Run[Payload], first_block: int) -> None:
        """Attach contents of the prompt's full blocks `first_block`…; raises ValueError if there are none such."""
        if first_block < 0 or first_block + len(blocks) > self.num_prompt // self.block_tokens:
            raise ValueError(f"{len(blocks)} blocks from {first_block} on are not blocks of this prompt")
        self.payloads = dict(enumerate(blocks, first_block))

    def count_cached(self, num_tokens: int) -> None:
        """Report tokens as found in a cache; what is found again after a preemption is not news."""
        if not self.was_preempted:
            self.num_cached += num_tokens

    def preempt(self) -> None:
        """Forget all that was computed but no token."""
        self.blocks = []
        self.num_computed = 0
        self.status = Status.WAITING
        self.was_preempted = True

    def _refuse_the_impossible(self) -> None:
        spec = self.spec
        if not spec.prompt:
            raise ValueError("prompt is empty")
        if spec.max_new < 0 or len(spec.generated) > spec.max_new:
            raise ValueError(f"max_new {spec.max_new} is less than the {len(spec.generated)} tokens generated already")
        if len(self.tokens) > self.max_context:
            raise ValueError(f"{len(self.tokens)} tokens do not fit in a context of {self.max_context}")
        if len(spec.block_keys) > self.num_prompt // self.block_tokens:
            raise ValueError(f"{len(spec.block_keys)} block_keys for a prompt of {self.num_prompt} tokens")
