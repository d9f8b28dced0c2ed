"""Pure decisions of the router: does a request need the prefill stage, and which worker takes it.

The cost of a worker is the time until it could start: seconds of queued work, plus what affinity saves. Liveness and
room come first, cost second, chance breaks ties.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.shared.messages import Tokenized
from headrace.shared.packing import num_packed
from headrace.shared.reports import State, WorkerReport

_UNMEASURED_RATE = {"prefill": 500.0, "decode": 50.0}
"""Tokens per second assumed of a worker that has not measured itself yet."""
_AFFINITY_S = 0.25
"""How much longer a session may wait for the worker that served it last."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Assignments the worker's own report does not show yet."""

    num: int = 0
    tokens: int = 0


_NOTHING = InFlight()


def needs_prefill(item: Tokenized, prefill: Sequence[WorkerReport], direct_tokens: int) -> bool:
    """Whether the prompt goes through the prefill stage rather than straight to decode.

    Not when its blocks are in place already, when the prompt is shorter than the detour is worth, or when no prefill
    worker can reach the shared cache, which is the only way blocks could travel.
    """
    if item.cached is not None or num_packed(item.prompt_ids) < direct_tokens:
        return False
    return any(worker.cache_ok for worker in serving(prefill, item.request.model))


def serving(workers: Sequence[WorkerReport], model: str) -> list[WorkerReport]:
    """Ready workers that serve the model."""
    return [w for w in workers if w.state is State.READY and any(m.name == model for m in w.models)]


def room(worker: WorkerReport, in_flight: Mapping[str, InFlight]) -> int:
    """How many more requests the worker may be given."""
    return worker.slots - worker.active - in_flight.get(worker.wid, _NOTHING).num


def choose(
    item: Tokenized,
    workers: Sequence[WorkerReport],
    in_flight: Mapping[str, InFlight],
    *,
    last_wid: str | None,
    alone: bool,
    rng: random.Random,
) -> str | None:
    """The worker for a request, or None when it has to wait. `alone`: only an idle one will do."""
    able = serving(workers, item.request.model)
    if alone:
        able = [w for w in able if w.active == 0 and w.wid not in in_flight]
    able = [w for w in able if room(w, in_flight) > 0]
    if not able:
        return None

    def cost(worker: WorkerReport) -> tuple[float, float]:
        affinity = _AFFINITY_S if worker.wid == last_wid else 0.0
        return seconds_of_work(worker, in_flight) - affinity, rng.random()

    return min(able, key=cost).wid


def seconds_of_work(worker: WorkerReport, in_flight: Mapping[str, InFlight]) -> float:
    """Seconds of work in front of a new request on this worker."""
    rate = worker.rate or _UNMEASURED_RATE.get(worker.stage, 100.0)
    tokens = worker.queued_tokens + in_flight.get(worker.wid, _NOTHING).tokens
    return tokens / rate


def work_tokens(item: Tokenized, stage: str) -> int:
    """Tokens of work a request brings to a worker of the stage."""
    prompt = num_packed(item.prompt_ids)
    if stage == "prefill":
        return prompt
    return prompt - item.prefilled + (item.request.max_new or 0)
