"""Pure decisions of the router: does a request need the prefill stage, and which worker takes it.

The cost of a worker is the time until it could start: seconds of queued work, less what affinity saves. Liveness and
room come first, cost second, chance breaks ties.
"""

import random
from collections.abc import Mapping, Sequence

from headrace.router.pricing import NOTHING, Candidate, InFlight, is_detour_worth_it, seconds_of_work
from headrace.shared.messages import Tokenized
from headrace.shared.packing import num_packed
from headrace.shared.reports import State, WorkerReport

_AFFINITY_S = 0.25
"""How much longer a session may wait for the worker that served it last."""
_LIKELY_NEW = 256
"""Tokens of output for which KV room is asked at first: most requests end long before their limit."""


def needs_prefill(
    item: Tokenized,
    prefill: Sequence[WorkerReport],
    decode: Sequence[WorkerReport],
    in_flight: Mapping[str, InFlight],
    *,
    direct_tokens: int,
    known_tokens: Mapping[str, int],
) -> bool:
    """Whether the prompt goes through the prefill stage rather than straight to decode.

    Not when its blocks are in place already, or when no prefill worker can reach the shared cache, which is the only
    way blocks could travel, or computes in another form than decode, which could not use them. Else `direct_tokens`
    decides, or, if it is 0, the price. `known_tokens`: prompt tokens that a worker is thought to have, by its id.
    """
    model = item.request.model
    forms = {_form(worker, model) for worker in serving(decode, model)}
    able = [w for w in serving(prefill, model) if w.cache_ok and (not forms or _form(w, model) in forms)]
    if item.cached is not None or not able:
        return False
    num_tokens = num_packed(item.prompt_ids)
    if direct_tokens:
        return num_tokens >= direct_tokens

    def candidates(workers: Sequence[WorkerReport]) -> list[Candidate]:
        return [
            Candidate(worker, in_flight.get(worker.wid, NOTHING), known_tokens.get(worker.wid, 0))
            for worker in with_room(item, workers, in_flight)
        ]

    return is_detour_worth_it(num_tokens, candidates(able), candidates(serving(decode, model)))


def serving(workers: Sequence[WorkerReport], model: str) -> list[WorkerReport]:
    """Ready workers that serve the model."""
    return [w for w in workers if w.state is State.READY and any(m.name == model for m in w.models)]


def _form(worker: WorkerReport, model: str) -> tuple[str, str]:
    """What blocks of the model are made of on this worker."""
    return next((m.fingerprint, m.profile) for m in worker.models if m.name == model)


def room(worker: WorkerReport, in_flight: Mapping[str, InFlight]) -> int:
    """How many more requests the worker may be given."""
    return worker.slots - worker.active - in_flight.get(worker.wid, NOTHING).num


def with_room(
    item: Tokenized, workers: Sequence[WorkerReport], in_flight: Mapping[str, InFlight]
) -> list[WorkerReport]:
    """Those with a slot and KV room for the request; an idle one has always: what never fits, its engine refuses."""

    def has_kv(worker: WorkerReport) -> bool:
        flying = in_flight.get(worker.wid, NOTHING)
        if not worker.kv_free_tokens or not (worker.active or flying.num):
            return True
        return kv_tokens(item, worker.stage) <= worker.kv_free_tokens - flying.kv_tokens

    return [worker for worker in workers if room(worker, in_flight) > 0 and has_kv(worker)]


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
    able = with_room(item, able, in_flight)
    if not able:
        return None

    def cost(worker: WorkerReport) -> tuple[float, float]:
        affinity = _AFFINITY_S if worker.wid == last_wid else 0.0
        return seconds_of_work(worker, in_flight) - affinity, rng.random()

    return min(able, key=cost).wid


def prompt_tokens(item: Tokenized, stage: str) -> int:
    """Prompt tokens that a worker of the stage has to compute."""
    return num_packed(item.prompt_ids) - (item.prefilled if stage == "decode" else 0)


def work_tokens(item: Tokenized, stage: str) -> int:
    """Tokens of work a request brings to a worker of the stage."""
    return prompt_tokens(item, stage) + (0 if stage == "prefill" else item.request.max_new or 0)


def kv_tokens(item: Tokenized, stage: str) -> int:
    """KV room a request should find on a worker of the stage."""
    num_new = 0 if stage == "prefill" else min(item.request.max_new or 0, _LIKELY_NEW)
    return num_packed(item.prompt_ids) + num_new
