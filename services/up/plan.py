"""The supervisor's decisions as plain functions: how many, in which order, how soon again, ready or not.

Knows no process and no clock.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.shared.config import MAX_WORKERS
from headrace.shared.errors import ConfigError
from headrace.shared.reports import STAGES, State, WorkerReport

STOP_ORDER: tuple[tuple[str, ...], ...] = (("ingress",), ("tokenize", "router", "prefill"), ("decode",))
"""Groups stopped one after another: the front door while everything behind it still works for its streams, the source
of tokens last."""
LONGEST_BACKOFF_S = 30.0
STEADY_S = 30.0
"""A process that lived this long is healthy: its next death starts the back-off anew."""


class Backoff:
    """How long to wait before a dead process is started again."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a process that lived `lived_s`; doubles while they die young."""
        if lived_s >= STEADY_S:
            self._next_s = self._first_s
        wait_s = self._next_s
        self._next_s = min(self._next_s * 2, max(LONGEST_BACKOFF_S, self._first_s))
        return wait_s


class HangWatch:
    """Finds processes that live but have fallen silent: stopped, or stuck where no deadline reaches."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._heard_at: dict[str, float] = {}

    def silent(self, now: float, running: Iterable[str], registered: Iterable[str]) -> list[str]:
        """Ids of `running` workers that were registered once and then not for `hang_s`; each is named once.

        An empty registry proves nothing about workers: the server is away, so everyone is taken as heard.
        """
        running, registered = set(running), set(registered)
        heard = running & registered if registered else running & self._heard_at.keys()
        kept = {wid: at for wid, at in self._heard_at.items() if wid in running}
        self._heard_at = {**kept, **dict.fromkeys(heard, now)}
        hung = [wid for wid, at in self._heard_at.items() if now - at >= self._hang_s]
        for wid in hung:
            del self._heard_at[wid]
        return hung


def wanted_at_start(workers: Mapping[str, int]) -> dict[str, int]:
    """Workers per stage at start: one where nothing is said."""
    return {stage: workers.get(stage, 1) for stage in STAGES}


def check_counts(workers: Mapping[str, int]) -> None:
    """Raise ConfigError for an unknown stage or a count that cannot be meant."""
    for stage, count in workers.items():
        if stage not in STAGES:
            raise ConfigError(f"unknown stage {stage!r} (stages: {', '.join(STAGES)})")
        if not 0 <= count <= MAX_WORKERS:
            raise ConfigError(f"{stage}={count}: between 0 and {MAX_WORKERS} workers can be asked for")


def missing(workers: Sequence[WorkerReport], wanted: Mapping[str, int], models: Sequence[str]) -> list[str]:
    """What keeps a request from succeeding now, one reason each; [] when ready. `models` are the served names."""
    ready = {stage: [w for w in workers if w.stage == stage and w.state is State.READY] for stage in STAGES}
    reasons = [f"no ready {stage} worker" for stage in _needed(wanted) if not ready[stage]]
    if not (wanted["router"] or wanted["prefill"]):
        reasons.append("neither a router nor a prefill worker is wanted")
    for stage in ("tokenize", "decode"):
        served = {model.name for worker in ready[stage] for model in worker.models}
        reasons += [f"no ready {stage} worker serves {name}" for name in models if ready[stage] and name not in served]
    return reasons


def can_become_ready(wanted: Mapping[str, int]) -> bool:
    """Whether waiting for readiness makes sense, or an operator asked for a stage without workers."""
    return all(wanted[stage] for stage in ("ingress", "tokenize", "decode")) and bool(
        wanted["router"] or wanted["prefill"]
    )


def _needed(wanted: Mapping[str, int]) -> list[str]:
    return [stage for stage in STAGES if wanted[stage] or stage in ("ingress", "tokenize", "decode")]
