"""Which token ids one sequence has seen and how often it generated them, and what the penalties make of its logits.

Kept per sequence and extended by each new token, so that a step costs the number of distinct ids, not the vocabulary.
Repetition counts the prompt and what was generated; presence and frequency count what was generated.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.shared.engine import SamplerParams

_FIRST_CAPACITY = 64


def has_penalties(params: SamplerParams) -> bool:
    """Whether any penalty has an effect."""
    return params.presence != 0 or params.frequency != 0 or params.repetition != 1


class SeenTokens:
    """The distinct ids of one sequence, each with the number of times it was generated."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._num_known = 0
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._counts = np.zeros(_FIRST_CAPACITY, dtype=np.float32)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take note of what `tokens` (the whole sequence so far) holds beyond what is known already."""
        for index in range(self._num_known, len(tokens)):
            slot = self._slot(tokens[index])
            if index >= self._num_prompt:
                self._counts[slot] += 1
        self._num_known = len(tokens)

    def penalize(self, logits: Tensor, params: SamplerParams) -> None:
        """Change one row of logits [vocab] in place; repetition first, then frequency and presence."""
        size = len(self._slots)
        ids = torch.from_numpy(self._ids[:size]).to(logits.device)
        counts = torch.from_numpy(self._counts[:size]).to(logits.device)
        seen = logits[ids]
        if params.repetition != 1:
            seen = torch.where(seen > 0, seen / params.repetition, seen * params.repetition)
        logits[ids] = seen - params.frequency * counts - params.presence * (counts > 0)

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot
