"""Draws in torch: any device, any processor. What the compiled kernels draw is tested against this.

Weights and sums are float64. A row's token never depends on the rows beside it: every operation here is elementwise, a
maximum, or a running sum along one row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.shared.engine import SamplerParams

OFF = (0, -1)
"""Values of top_k that keep everything."""
_NUM_CANDIDATES = 1024
"""How many best tokens of a row are looked at before all of them are put in order."""
_ROWS_AT_ONCE = 4
"""Rows drawn together: few enough for their float64 weights to stay in the processor's cache."""
_ID_BITS = 32


def draw(logits: Tensor, params: Sequence[SamplerParams], noise: Sequence[float]) -> list[int]:
    """One token for each row of `logits` [rows, vocab] by its noise in [0, 1); temperatures are above 0."""
    tokens: list[int] = []
    for first in range(0, len(params), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        gaps = (logits[some].amax(-1, keepdim=True) - logits[some]).abs_()
        tokens += _draw_together(gaps, params[some], noise[some])
    return tokens


def _draw_together(gaps: Tensor, params: Sequence[SamplerParams], noises: Sequence[float]) -> list[int]:
    """Invert the cumulative distribution of each row in order of token id.

    `gaps` [rows, vocab] is how far each logit lies below the best one of its row.
    """
    weights = _weights(gaps, params)
    noise = _column(noises, weights)
    num_vocab = weights.shape[-1]
    cut = [index for index, row in enumerate(params) if _is_cut(row, num_vocab)]
    whole = [index for index, row in enumerate(params) if not _is_cut(row, num_vocab)]
    tokens: dict[int, int] = {}
    if whole:
        drawn = _invert(weights[whole].cumsum(-1), noise[whole]).tolist()
        tokens.update(zip(whole, drawn, strict=True))
    for size in (min(_NUM_CANDIDATES, num_vocab), num_vocab):
        cut = [index for index in cut if index not in tokens]
        if cut:
            best = _best(_order_keys(gaps[cut]), size)
            found = _draw_among_best(best, weights[cut], noise[cut], [params[index] for index in cut])
            tokens.update({index: token for index, token in zip(cut, found, strict=True) if token is not None})
    return [tokens[index] for index in range(len(params))]


def _weights(gaps: Tensor, params: Sequence[SamplerParams]) -> Tensor:
    """Probabilities up to a factor, [rows, vocab] float64: the best token of a row has weight 1.

    The best is at gap 0, so no temperature, however small, overflows.
    """
    weights = gaps.double()
    weights /= _column([-row.temperature for row in params], weights)
    weights.exp_()
    if any(row.min_p > 0 for row in params):
        weights[weights < _column([row.min_p for row in params], weights)] = 0.0
    return weights


def _is_cut(params: SamplerParams, num_vocab: int) -> bool:
    return params.top_p < 1 or (params.top_k not in OFF and params.top_k < num_vocab)


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
    ks = [[min(row.top_k, num_vocab) if row.top_k not in OFF else num_vocab] for row in params]
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


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
