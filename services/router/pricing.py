"""What a prompt costs by either way, through the prefill stage or straight on a decode worker: estimates in seconds.

Both stages compute short prompts first and keep a part of each step for the oldest; a decode worker also keeps half of
each step for its streams, which every prompt token delays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.shared.reports import WorkerReport

_UNMEASURED_RATE = {"prefill": 500.0, "decode": 50.0}
"""Tokens per second assumed of a worker that has not measured itself yet."""
_UNMEASURED_PROMPT_RATE = 500.0
_UNMEASURED_FETCH_RATE = 500e6
_HOPS_S = 0.005
"""Two more queues and the store's answer on the way through prefill."""
_TAIL_TOKENS = 16
"""The last tokens of a prompt are computed where it is continued, wherever the others were."""
_OLDEST_KEEPS = 4 / 3
"""How much longer others take for the part of each step that is the oldest prompt's."""
_BESIDE_STREAMS = 2.0
"""How much longer a prompt takes that shares its steps with running streams."""
_HARM = 0.25
"""A second by which one running stream is delayed counts for so many seconds of waiting for a first token."""
_KEPT_FREE = 0.5
"""The same for somebody who may come meanwhile and needs this stage in any case: very long prompts leave it free."""
_BRIEF_S = 0.5
"""For less than this nobody is expected to come."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Assignments the worker's own report does not show yet."""

    num: int = 0
    tokens: int = 0
    """Tokens of work."""
    prompt_tokens: int = 0
    """Of these, prompt tokens."""
    kv_tokens: int = 0
    """KV room they will take."""


NOTHING = InFlight()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker with room, with what it has been given already."""

    worker: WorkerReport
    in_flight: InFlight = NOTHING
    known_tokens: int = 0
    """Leading tokens of the prompt that it has computed before, as far as anybody knows."""


def is_detour_worth_it(num_tokens: int, prefill: Sequence[Candidate], decode: Sequence[Candidate]) -> bool:
    """Whether the prefill stage makes a prompt's first token come earlier, all streams considered.

    With no room in one stage, the other one it is: prefill may work ahead of a full decode stage.
    """
    # A worker that has not measured itself yet is taken to be as fast as the others; else nobody would ever find out.
    assumed = max((candidate.worker.prompt_rate for candidate in (*prefill, *decode)), default=0.0)
    detours = [_detour_s(num_tokens, candidate, decode, assumed) for candidate in prefill]
    directs = [_direct_s(num_tokens - candidate.known_tokens, candidate, assumed) for candidate in decode]
    return min(detours, default=float("inf")) < min(directs, default=float("inf"))


def seconds_of_work(worker: WorkerReport, in_flight: Mapping[str, InFlight]) -> float:
    """Seconds of work in front of a new request on this worker."""
    flying = in_flight.get(worker.wid, NOTHING)
    if worker.stage == "prefill":
        return (worker.queued_tokens + flying.tokens) / _prompt_rate(worker)
    num_prompt = worker.prompt_tokens + flying.prompt_tokens
    num_new = worker.queued_tokens + flying.tokens - flying.prompt_tokens
    rate = worker.token_rate or worker.rate or _UNMEASURED_RATE.get(worker.stage, 100.0)
    return num_prompt / _prompt_rate(worker) + num_new / rate


def _prompt_rate(worker: WorkerReport, assumed: float = 0.0) -> float:
    """Prompt tokens per second of a worker, measured or assumed."""
    return worker.prompt_rate or assumed or worker.rate or _UNMEASURED_PROMPT_RATE


def _detour_s(num_tokens: int, candidate: Candidate, decode: Sequence[Candidate], assumed: float) -> float:
    """Through prefill: wait and compute there, move the blocks, compute the tail on a decode worker."""
    worker, flying = candidate.worker, candidate.in_flight
    tail = min(num_tokens, _TAIL_TOKENS)
    num_moved = num_tokens - tail
    if not num_moved:
        return float("inf")
    held = worker.active + flying.num
    wait = _tokens_ahead(num_moved, worker.queued_tokens + flying.tokens, held)
    fetch_rate = max((other.worker.fetch_rate for other in decode), default=0.0) or _UNMEASURED_FETCH_RATE
    token_bytes = max((model.kv_token_bytes for model in worker.models), default=0)
    moving_s = _HOPS_S + num_moved * token_bytes / fetch_rate
    tail_s = min((_direct_s(tail, other, assumed) + _step_s(other) for other in decode), default=0.0)
    return (wait + num_moved) / _prompt_rate(worker, assumed) + moving_s + tail_s


def _direct_s(num_tokens: int, candidate: Candidate, assumed: float) -> float:
    """On a decode worker: wait and compute beside its streams, and what that costs them."""
    worker, flying = candidate.worker, candidate.in_flight
    num_tokens = max(1, num_tokens)
    held = worker.active + flying.num
    ahead = worker.prompt_tokens + flying.prompt_tokens
    # Who has its prompt still to compute is no stream yet; it is taken to be as long as this one.
    num_streams = max(0, held - -(-ahead // num_tokens))
    rate = _prompt_rate(worker, assumed)
    seconds = (_tokens_ahead(num_tokens, ahead, held) + num_tokens) / rate
    own_s = num_tokens / rate
    harm = _HARM * num_streams * own_s + _KEPT_FREE * max(0.0, own_s - _BRIEF_S)
    return seconds * (_BESIDE_STREAMS if num_streams else 1.0) + harm


def _step_s(candidate: Candidate) -> float:
    """One more step on a decode worker: what a tail costs beyond its tokens."""
    rate = candidate.worker.token_rate
    return max(1, candidate.worker.active) / rate if rate else 0.0


def _tokens_ahead(num_tokens: int, queued: int, held: int) -> float:
    """Prompt tokens computed before the last of `num_tokens`: of each longer prompt, no more than its own length."""
    return min(queued, num_tokens * held) * _OLDEST_KEEPS
