"""From logits to tokens: bias, penalties, temperature, top-k, top-p, min-p and one draw per row.

The noise of a row is one number, a pure function of (seed, choice, position): no generator state exists, so a sequence
continued elsewhere draws the same tokens, on machines of one kind: the compiled kernels and torch round differently,
which shows where the noise falls within a millionth of the boundary between two tokens. A row's token never depends on
the rows beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from headrace.shared.engine import SamplerParams, StepError
from headrace.shared.engine.draw import OFF, draw
from headrace.shared.engine.penalties import SeenTokens
from headrace.shared.kernels import library


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row of logits is to be sampled with."""

    id: str
    params: SamplerParams
    position: int
    """Absolute position of the token to be drawn."""
    seen: SeenTokens | None = None
    """Set where a penalty has an effect."""


def validate(params: SamplerParams, vocab_size: int) -> None:
    """Raise ValueError naming the first field whose value has no meaning."""
    checks = {
        "temperature": 0 <= params.temperature < math.inf,
        "top_p": 0 <= params.top_p <= 1,
        "top_k": params.top_k >= min(OFF),
        "min_p": 0 <= params.min_p <= 1,
        "presence": math.isfinite(params.presence),
        "frequency": math.isfinite(params.frequency),
        "repetition": 0 < params.repetition < math.inf,
        "logit_bias": all(0 <= token < vocab_size and math.isfinite(bias) for token, bias in params.logit_bias.items()),
    }
    for name, is_good in checks.items():
        if not is_good:
            raise ValueError(f"{name} cannot be {getattr(params, name)!r}")


def uniform(seed: int, choice: int, position: int) -> float:
    """The noise of one draw: 53 bits in [0, 1), the same in every process and on every machine."""
    digest = blake2b(f"{seed}:{choice}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Draw one token for each row of `logits` [rows, vocab], float32, which is changed.

    Raises StepError for the first row that holds no number to choose by.
    """
    for index, row in enumerate(rows):
        if row.seen is not None or row.params.logit_bias:
            _shift(logits[index], row)
    best = _argmax(logits)
    _refuse_non_numbers(logits.gather(-1, best), rows)
    tokens: list[int] = best.flatten().tolist()
    random = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if random:
        for index, token in zip(random, _draw(logits, rows, random), strict=True):
            tokens[index] = token
    return tokens


def _argmax(logits: Tensor) -> Tensor:
    """[rows, 1], the lowest id among equals, the first that is no number if there is one."""
    if logits.device.type == "cpu":  # numpy's is vectorised: 16 rows of 49,152 take 0.1 ms, torch's 1.4
        return torch.from_numpy(logits.numpy().argmax(-1))[:, None]
    return logits.argmax(-1, keepdim=True)


def _shift(logits: Tensor, row: SampleRow) -> None:
    """Apply bias and penalties to one row [vocab] in place."""
    if row.params.logit_bias:
        ids = torch.tensor(list(row.params.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(row.params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if row.seen is not None:
        row.seen.penalize(logits, row.params)


def _refuse_non_numbers(peaks: Tensor, rows: Sequence[SampleRow]) -> None:
    """NaN is the maximum of a row that holds one; a row of infinities has no order either."""
    for row, is_finite in zip(rows, peaks.isfinite().flatten().tolist(), strict=True):
        if not is_finite:
            raise StepError(row.id, "the logits hold no finite maximum")


def _draw(logits: Tensor, rows: Sequence[SampleRow], which: Sequence[int]) -> list[int]:
    """A token for each row in `which`."""
    params = [rows[index].params for index in which]
    noise = [uniform(rows[index].params.seed, rows[index].params.choice, rows[index].position) for index in which]
    if not _fits_kernels(logits):
        return draw(logits[which], params, noise)
    first, row_bytes = logits.data_ptr(), logits.stride(0) * logits.itemsize
    described = [
        library.Draw(
            logits=first + index * row_bytes,
            temperature=row.temperature,
            top_p=row.top_p,
            min_p=row.min_p,
            noise=value,
            top_k=min(max(row.top_k, 0), logits.shape[-1]),
        )
        for index, row, value in zip(which, params, noise, strict=True)
    ]
    return library.draw(described, logits.shape[-1])


def _fits_kernels(logits: Tensor) -> bool:
    is_plain = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()
    return is_plain and library.is_available()
