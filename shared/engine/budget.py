"""How one step's token budget is divided between prompts. A pure function; knows numbers of tokens only."""

from collections.abc import Sequence

_OLDEST_PART = 4
"""The oldest prompt is sure of one part in so many."""


def share(budget: int, pending: Sequence[int]) -> list[int]:
    """Divide a step's token budget between prompts, oldest first in `pending`.

    A quarter goes to the oldest, so that it always advances; the rest to whoever is closest to its end, so that a short
    prompt does not wait behind a long one.
    """
    shares = [0] * len(pending)
    if not pending:
        return shares
    shares[0] = min(pending[0], -(-budget // _OLDEST_PART))
    left = budget - shares[0]
    for index in sorted(range(len(pending)), key=lambda index: pending[index] - shares[index]):
        extra = min(pending[index] - shares[index], left)
        shares[index] += extra
        left -= extra
    return shares
