"""Turns a step's plan into one forward pass and its logits into tokens. Knows neither queues nor the block pool."""

from collections.abc import Sequence as Run
from typing import Protocol

import torch
from torch import Tensor

from headrace.shared.engine.batch import Batch, Row, build_batch
from headrace.shared.engine.penalties import SeenTokens, has_penalties
from headrace.shared.engine.sampler import SampleRow, sample
from headrace.shared.engine.scheduler import Work
from headrace.shared.engine.sequence import Sequence
from headrace.shared.engine.storage import KVStorage


class Forward(Protocol):
    """A decoder as the runner sees it."""

    def __call__(self, batch: Batch, storage: KVStorage, /) -> Tensor:
        """Write the KV of the batch's tokens and return float32 logits [rows that want logits, vocab]."""


class Runner:
    """Owns what sampling remembers of each sequence."""

    def __init__(self, decoder: Forward, storage: KVStorage, *, block_tokens: int, device: torch.device) -> None:
        self._decoder = decoder
        self._storage = storage
        self._block_tokens = block_tokens
        self._device = device
        self._seen: dict[str, SeenTokens] = {}

    def run(self, plan: Run[Work]) -> dict[str, list[int]]:
        """Compute a plan; returns the sampled token of each sequence that reached its target, by id.

        Raises StepError if the logits of one sequence are no numbers; nothing is remembered of such a step.
        """
        work = [entry for entry in plan if entry.num_tokens]
        if not work:
            return {}
        rows = [_row(entry) for entry in work]
        finals = [entry.sequence for entry, row in zip(work, rows, strict=True) if row.wants_logits]
        with torch.inference_mode():
            logits = self._decoder(build_batch(rows, self._block_tokens, self._device), self._storage)
            if not finals:
                return {}
            tokens = sample(logits, [self._sample_row(sequence) for sequence in finals])
        return {sequence.id: [token] for sequence, token in zip(finals, tokens, strict=True)}

    def forget(self, id: str) -> None:  # noqa: A002  # the contract's own word for a sequence id
        """Drop what is remembered of a sequence; unknown ids are fine."""
        self._seen.pop(id, None)

    def _sample_row(self, sequence: Sequence) -> SampleRow:
        params = sequence.spec.sampling
        seen = self._seen_by(sequence) if has_penalties(params) else None
        return SampleRow(id=sequence.id, params=params, position=len(sequence.tokens), seen=seen)

    def _seen_by(self, sequence: Sequence) -> SeenTokens:
        seen = self._seen.setdefault(sequence.id, SeenTokens(sequence.num_prompt))
        seen.extend(sequence.tokens)
        return seen


def _row(entry: Work) -> Row:
    sequence, num_tokens = entry
    first, last = sequence.num_computed, sequence.num_computed + num_tokens
    return Row(
        ids=sequence.tokens[first:last],
        first_position=first,
        block_table=sequence.blocks,
        wants_logits=last == len(sequence.tokens) and not sequence.is_prefill,
    )
