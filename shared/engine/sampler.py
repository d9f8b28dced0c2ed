"""From logits to tokens: bias, penalties, temperature, top-k, top-p, min-p and one draw per row.

The noise of a row is one number, a pure function of (seed, choice, position): no generator state exists, so a sequence
continued elsewhere draws the same tokens. A row's token never depends on the rows beside it: every operation here is
elementwise, a maximum, or a running sum along one row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from headrace.shared.engine import SamplerParams, StepError
from headrace.shared.engine.penalties import SeenTokens

_NUM_CANDIDATES = 1024
"""How many best tokens of a row are looked at before all of them are put in order."""
_ROWS_AT_ONCE = 4
"""Rows drawn together: few enough for their float64 weights to stay in the processor's cache."""
_ID_BITS = 32
_OFF = (0, -1)
"""Values of top_k that keep everything."""


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
        "top_k": params.top_k >= min(_OFF),
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
    peaks = logits.gather(-1, best)
    _refuse_non_numbers(peaks, rows)
    tokens: list[int] = best.flatten().tolist()
    random = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    for first in range(0, len(random), _ROWS_AT_ONCE):
        some = random[first : first + _ROWS_AT_ONCE]
        drawn = _draw((peaks[some] - logits[some]).abs_(), [rows[index] for index in some])
        for index, token in zip(some, drawn, strict=True):
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


def _draw(gaps: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Invert the cumulative distribution of each row in order of token id.

    `gaps` [rows, vocab] is how far each logit lies below the best one of its row.
    """
    weights = _weights(gaps, rows)
    noise = _column([uniform(row.params.seed, row.params.choice, row.position) for row in rows], weights)
    num_vocab = weights.shape[-1]
    cut = [index for index, row in enumerate(rows) if _is_cut(row.params, num_vocab)]
    whole = [index for index, row in enumerate(rows) if not _is_cut(row.params, num_vocab)]
    tokens: dict[int, int] = {}
    if whole:
        drawn = _invert(weights[whole].cumsum(-1), noise[whole]).tolist()
        tokens.update(zip(whole, drawn, strict=True))
    for size in (min(_NUM_CANDIDATES, num_vocab), num_vocab):
        cut = [index for index in cut if index not in tokens]
        if cut:
            best = _best(_order_keys(gaps[cut]), size)
            found = _draw_among_best(best, weights[cut], noise[cut], [rows[index].params for index in cut])
            tokens.update({index: token for index, token in zip(cut, found, strict=True) if token is not None})
    return [tokens[index] for index in range(len(rows))]


def _weights(gaps: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Probabilities up to a factor, [rows, vocab] float64: the best token of a row has weight 1.

    The best is at gap 0, so no temperature, however small, overflows.
    """
    weights = gaps.double()
    weights /= _column([-row.params.temperature for row in rows], weights)
    weights.exp_()
    if any(row.params.min_p > 0 for row in rows):
        weights[weights < _column([row.params.min_p for row in rows], weights)] = 0.0
    return weights


def _is_cut(params: SamplerParams, num_vocab: int) -> bool:
    return params.top_p < 1 or (params.top_k not in _OFF and params.top_k < num_vocab)


def _order_keys(gaps: Tensor) -> Tensor:
    """Distinct integers that sort by rising gap and, among equals, rising id: bits of a float >= 0 sort as it does."""
    keys = gaps.view(torch.int32).long()
    keys <<= _ID_BITS
    keys |= torch.arange(gaps.shape[-1], device=gaps.device)
    return keys


def _best(keys: Tensor, size: int) -> Tensor:
    """Ids of the `size` smallest keys of each row, in order."""
    if keys.device.type == "cpu":  # numpy's vectorised sort is ten times as fast as torch's
        found = keys.numpy()
        if size < found.shape[-1]:
            found = np.partition(found, size - 1)[:, :size]
        smallest = torch.from_numpy(np.sort(found))
    else:
        smallest = keys.topk(size, largest=False).values
    return smallest & ((1 << _ID_BITS) - 1)


def _draw_among_best(best: Tensor, weights: Tensor, noise: Tensor, params: Sequence[SamplerParams]) -> list[int | None]:
    """One token a row, or None where the top-k and top-p cuts lie beyond its `best` tokens [rows, size]."""
    size = best.shape[-1]
    values = weights.gather(-1, best)
    num_kept = _num_kept(weights, values, params)
    values *= torch.arange(size, device=weights.device) < num_kept
    kept = torch.zeros_like(weights).scatter_(-1, best, values)
    tokens = _invert(kept.cumsum_(-1), noise).tolist()
    is_enough = (num_kept <= size).flatten().tolist()
    return [token if enough else None for token, enough in zip(tokens, is_enough, strict=True)]


def _num_kept(weights: Tensor, values: Tensor, params: Sequence[SamplerParams]) -> Tensor:
    """How many of the best tokens stay, [rows, 1]: at most k, and no more than it takes to reach top_p.

    More than there are candidates means that they did not suffice to tell.
    """
    num_vocab, size = weights.shape[-1], values.shape[-1]
    ks = [[min(row.top_k, num_vocab) if row.top_k not in _OFF else num_vocab] for row in params]
    top_k = torch.tensor(ks, device=weights.device)
    top_p = _column([row.top_p for row in params], weights)
    cumulated = values.cumsum(-1)
    total = torch.where(top_k < num_vocab, cumulated.gather(-1, top_k.clamp(max=size) - 1), weights.cumsum(-1)[:, -1:])
    num_below = (cumulated < top_p * total).sum(-1, keepdim=True)
    num_kept = torch.minimum(top_k, torch.where(top_p < 1, num_below + 1, num_vocab))
    # top_p is a share of what top_k keeps: with k beyond the candidates that sum is not known.
    return torch.where((top_k > size) & (top_k < num_vocab), size + 1, num_kept)


def _invert(cumulated: Tensor, noise: Tensor) -> Tensor:
    """Index of the first entry above noise x total in each row, [rows]; entries of weight zero are never hit."""
    total = cumulated[:, -1:]
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target, right=True).flatten()


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
