"""One step as tensors: the new tokens of many sequences, each on top of its cached prefix.

Built from plain integers; all index and mask tensors of attention are made here, once per step. Knows block numbers,
not who owns the blocks, and no request.

Rows are laid out so that attention works on contiguous ranges: first all sequences with one new token, shortest context
first, then the longer chunks one after another. `logit_rows` restores the caller's order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace.shared.errors import ModelError
from headrace.shared.model.step import AttentionGroup

_CHUNK_QUERIES = 128
"""Queries of one chunk attended to at once: bounds the score matrix, and earlier queries skip the later keys."""
_ALWAYS_TOGETHER = 256
"""Contexts up to this many tokens share one padded operation: below it, dispatch costs more than padding."""


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one sequence."""

    ids: list[int]
    first_position: int
    """Position of `ids[0]`: so many tokens are cached already."""
    block_table: list[int]
    """Physical blocks of the sequence in order; covers the new tokens too."""
    wants_logits: bool
    """Whether the logits after the last id are wanted."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of the step that belong to one sequence."""

    start: int
    num_new: int
    context: int
    """Tokens of the sequence after this step: cached ones + `num_new`."""
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step over T rows; R of them yield logits."""

    ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    slots: Tensor
    """[T] int64 physical KV slot of each new token."""
    logit_rows: Tensor
    """[R] int64, in the order of the rows that want logits."""
    spans: tuple[Span, ...]
    """In row order, not in the caller's order."""
    block_tokens: int
    mask: Literal["causal", "block"] = "causal"

    def __post_init__(self) -> None:
        if self.mask != "causal":
            raise ModelError(f"mask kind {self.mask!r} is not served yet; use 'causal'")

    def groups(self, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> tuple[AttentionGroup, ...]:
        """Attention groups for layers that see `window` keys back (None: all), covering all rows in order."""
        return tuple(_group(tile, self, window, heads_per_kv, dtype) for tile in _tiles(self.spans))


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries attended to together: `num_queries` from each of `spans`, whose first ones stand at `firsts`."""

    start: int
    num_queries: int
    spans: Sequence[Span]
    firsts: list[int]


def build_batch(rows: Sequence[Row], block_tokens: int, device: torch.device) -> Batch:
    """Lay the rows of a step out as tensors; `logit_rows` follows the order of `rows`."""
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i].ids) > 1, rows[i].first_position, i))
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    last_row = [0] * len(rows)
    spans: list[Span] = []
    for i in order:
        row = rows[i]
        context = row.first_position + len(row.ids)
        assert row.ids, "a row without new tokens"
        assert len(row.block_table) * block_tokens >= context, "the block table does not cover the new tokens"
        spans.append(Span(len(ids), len(row.ids), context, tuple(row.block_table)))
        ids += row.ids
        positions += range(row.first_position, context)
        slots += (
            row.block_table[p // block_tokens] * block_tokens + p % block_tokens
            for p in range(row.first_position, context)
        )
        last_row[i] = len(ids) - 1
    wanted = [last_row[i] for i, row in enumerate(rows) if row.wants_logits]
    packed = torch.tensor(ids + positions + slots + wanted, dtype=torch.int64, device=device)
    t = len(ids)
    return Batch(packed[:t], packed[t : 2 * t], packed[2 * t : 3 * t], packed[3 * t :], tuple(spans), block_tokens)


def _tiles(spans: Sequence[Span]) -> list[_Tile]:
    """Cut the step into tiles: single-token spans by similar context, longer ones by `_CHUNK_QUERIES`."""
    tiles: list[_Tile] = []
    singles: list[Span] = []
    for span in spans:
        if span.num_new == 1 and (not singles or span.context <= max(_ALWAYS_TOGETHER, 2 * singles[0].context)):
            singles.append(span)
            continue
        if singles:
            tiles.append(_single_tile(singles))
            singles = []
        if span.num_new == 1:
            singles.append(span)
        else:
            tiles += _chunk_tiles(span)
    if singles:
        tiles.append(_single_tile(singles))
    return tiles


def _single_tile(spans: Sequence[Span]) -> _Tile:
    return _Tile(spans[0].start, 1, spans, [span.context - 1 for span in spans])


def _chunk_tiles(span: Span) -> list[_Tile]:
    cached = span.context - span.num_new
    return [
        _Tile(span.start + done, min(_CHUNK_QUERIES, span.num_new - done), [span], [cached + done])
        for done in range(0, span.num_new, _CHUNK_QUERIES)
    ]


def _group(tile: _Tile, batch: Batch, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> AttentionGroup:
    """Slots and mask of one tile.

    Keys run from the oldest one its first query sees to its last query; shorter sequences are padded with their own
    newest key, which is finite, and masked.
    """
    size, m, device = batch.block_tokens, tile.num_queries, batch.ids.device
    oldest = [0 if window is None else max(0, first - window + 1) for first in tile.firsts]
    num_keys = max(first + m - old for first, old in zip(tile.firsts, oldest, strict=True))
    first = torch.tensor(tile.firsts, device=device)[:, None]  # [B, 1]
    keys = torch.tensor(oldest, device=device)[:, None] + torch.arange(num_keys, device=device)  # [B, N]
    stored = torch.minimum(keys, first + m - 1)
    slots = _block_tables(tile.spans, device).gather(1, stored // size) * size + stored % size

    bias = None
    if m > 1 or len({f - o for f, o in zip(tile.firsts, oldest, strict=True)}) > 1:
        age = (first + torch.arange(m, device=device))[:, :, None] - keys[:, None, :]  # [B, m, N]
        hidden = age < 0 if window is None else (age < 0) | (age >= window)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        bias = bias.repeat_interleave(heads_per_kv, dim=1)[:, None]  # [B, 1, m * heads_per_kv, N]
    rows = slice(tile.start, tile.start + len(tile.firsts) * m)
    return AttentionGroup(rows, len(tile.firsts), m, slots.flatten(), bias)


def _block_tables(spans: Sequence[Span], device: torch.device) -> Tensor:
    """[B, blocks], short tables padded with block 0, which no index reaches."""
    width = max(len(span.block_table) for span in spans)
    tables = [(*span.block_table, *[0] * (width - len(span.block_table))) for span in spans]
    return torch.tensor(tables, device=device)
