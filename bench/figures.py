"""Numbers out of what a load recorded: percentiles, rates, medians over runs. Pure; knows no server and no file."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from load import Load, Reply

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
TIMES = ("ttft", "tpot", "gap", "e2e")
"""Kinds of time a summary has, each as `<kind>_ms_<percentile>`."""

Summary = dict[str, float | None]


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value that `share` of all values lie below, never interpolated; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are there."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(top: float | None, bottom: float | None) -> float | None:
    """`top` / `bottom`; None when one of them is missing or the lower one is zero."""
    return None if top is None or not bottom else top / bottom


def summarise(load: Load) -> Summary:
    """What one load comes to. Rates count the requests that ended well over the time the whole load took."""
    good = [reply for reply in load.replies if not reply.error]
    num_tokens = sum(reply.num_tokens for reply in good)
    num_prompt = sum(reply.num_prompt_tokens for reply in good)
    num_cached = sum(reply.num_cached_tokens for reply in good)
    summary: Summary = {
        "requests": len(good),
        "errors": len(load.replies) - len(good),
        "tok_s": num_tokens / load.elapsed_s,
        "all_tok_s": (num_tokens + num_prompt) / load.elapsed_s,
        "req_s": len(good) / load.elapsed_s,
        "prompt_tokens": num_prompt,
        "cached_tokens": num_cached,
        "cached_share": ratio(num_cached, num_prompt),
    }
    for kind, seconds in times(good).items():
        for name, share in PERCENTILES.items():
            found = percentile(seconds, share)
            summary[f"{kind}_ms_{name}"] = None if found is None else found * 1000
    return summary


def times(replies: Sequence[Reply]) -> dict[str, list[float]]:
    """All times of the replies in seconds, by kind."""
    return {
        "ttft": [reply.ttft_s for reply in replies if reply.ttft_s is not None],
        "tpot": [reply.tpot_s for reply in replies if reply.tpot_s is not None],
        "gap": [gap for reply in replies for gap in reply.gaps_s],
        "e2e": [reply.e2e_s for reply in replies],
    }


def raw(reply: Reply) -> dict[str, Any]:
    """One request as it is kept in bench.json; times in milliseconds."""
    return {
        "started_ms": _ms(reply.started_s),
        "ttft_ms": _ms(reply.ttft_s),
        "tpot_ms": _ms(reply.tpot_s),
        "e2e_ms": _ms(reply.e2e_s),
        "gaps_ms": [_ms(gap) for gap in reply.gaps_s],
        "tokens": reply.num_tokens,
        "prompt_tokens": reply.num_prompt_tokens,
        "cached_tokens": reply.num_cached_tokens,
        "error": reply.error,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
