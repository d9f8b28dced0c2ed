"""What headrace promises about its speed, as a table; each line says which measurement keeps or breaks it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from results import Measure, Results, Spot, quotient, value
from scenarios import OURS, SCRIPTED, UNCACHED
from sidecars import mean_divergence, num_passed, steepest_growth

_QUALITY = ".venv/bin/python bench/quality.py"
_TESTS = "make test ARGS='--junitxml build/tests.xml'"


@dataclass(frozen=True, slots=True)
class Target:
    """One promise."""

    group: int
    figure: str
    sign: Literal["≥", "≤", "<"]
    goal: float
    unit: str
    measure: Measure
    command: str
    """What prints the figure alone."""

    def is_met(self, measured: float | None) -> bool | None:
        """None when there is no measurement."""
        if measured is None:
            return None
        return {"≥": measured >= self.goal, "≤": measured <= self.goal, "<": measured < self.goal}[self.sign]


def targets() -> list[Target]:
    """All of them, in order."""
    return [*_against_peers(), *_quality(), *_reuse(), *_plumbing(), *_families(), *_fairness(), *_soak()]


def _at(server: str, clients: int, scenario: str = "throughput") -> Spot:
    return Spot(server, scenario, f"c{clients}")


def _only(scenario: str) -> str:
    return f"make bench ONLY={scenario}"


def _against_peers() -> Iterator[Target]:
    command = _only("throughput")
    for clients in (16, 32):
        for peer, goal in (("vllm", 2.0), ("llamacpp", 3.0)):
            measure = quotient("tok_s", _at(OURS, clients), _at(peer, clients))
            yield Target(1, f"output tok/s at {clients} clients over {peer}'s", "≥", goal, "×", measure, command)
    measure = quotient("tok_s", _at(OURS, 4, "long"), _at("vllm", 4, "long"))
    yield Target(1, "600-word prompts, 4 clients: output tok/s over vllm's", "≥", 2.0, "×", measure, _only("long"))

    measure = quotient("tpot_ms_p50", _at(OURS, 1), _at("llamacpp", 1))
    yield Target(2, "TPOT p50 at one client over llamacpp's", "≤", 1.0, "×", measure, command)
    for clients, goal in ((1, 0.6), (16, 0.5)):
        measure = quotient("ttft_ms_p50", _at(OURS, clients), _at("vllm", clients))
        yield Target(2, f"TTFT p50, {clients} client(s), over vllm's", "≤", goal, "×", measure, command)
    measure = quotient("gap_ms_p99", _at(OURS, 16), _at(OURS, 16), "tpot_ms_p50")
    yield Target(2, "gap p99 at 16 clients over TPOT p50", "≤", 3.0, "×", measure, command)


def _quality() -> Iterator[Target]:
    for profile, goal in (("bf16", 0.002), ("int4", 0.002), ("w8a8", 0.015)):
        yield Target(3, f"mean KL of {profile} from fp32", "≤", goal, "nat", _divergence(profile), _QUALITY)
    figure = "deterministic: tests of equal ids alone and among 31 others that pass"
    yield Target(3, figure, "≥", 1, "", _passed("among_31_others"), _TESTS)


def _divergence(profile: str) -> Measure:
    return lambda results: mean_divergence(results.quality, profile)


def _passed(test: str) -> Measure:
    return lambda results: num_passed(results.cases, test)


def _reuse() -> Iterator[Target]:
    warm, cold = (Spot(OURS, "prefix", name) for name in ("warm", "cold"))
    measure = quotient("ttft_ms_p50", warm, cold)
    yield Target(4, "TTFT p50 with a known 600-word prefix over cold", "≤", 0.2, "×", measure, _only("prefix"))
    measure = quotient("tok_s", _at(OURS, 16, "reuse"), _at(UNCACHED, 16, "reuse"))
    yield Target(4, "nothing to reuse: tok/s with the cache over without", "≥", 0.97, "×", measure, _only("reuse"))


def _plumbing() -> Iterator[Target]:
    first, tokens, requests = (Spot(SCRIPTED, "plumbing", name) for name in ("first-token", "tokens", "requests"))
    command = _only("plumbing")
    yield Target(5, "`scripted`, 1 client: TTFT p50", "≤", 5.0, "ms", value("ttft_ms_p50", first), command)
    yield Target(5, "`scripted`, 1 client: TTFT p99", "≤", 20.0, "ms", value("ttft_ms_p99", first), command)
    yield Target(5, "`scripted`, 64 clients: output", "≥", 10_000.0, "tok/s", value("tok_s", tokens), command)
    yield Target(5, "`scripted`, 32 clients, 1 token each", "≥", 200.0, "req/s", value("req_s", requests), command)


def _families() -> Iterator[Target]:
    """A form of a family that passes is one case of each of these tests."""
    for figure, test in (
        ("logits within 1e-4 of transformers'", "test_logits_are_those_of_transformers"),
        ("a prompt in chunks gives what the whole does", "test_chunks_give_the_logits_of_the_whole"),
        ("KV moved elsewhere goes on bit for bit", "test_blocks_moved_to_a_fresh_storage_continue_bit_for_bit"),
    ):
        yield Target(6, f"oracles of families passed: {figure}", "≥", 12, "", _passed(test), _TESTS)


def _fairness() -> Iterator[Target]:
    even, mixed = (Spot(OURS, "mixed", name) for name in ("even", "mixed"))
    measure = quotient("tok_s", mixed, even)
    yield Target(7, "mixed lengths: tok/s over all at their means", "≥", 0.6, "×", measure, _only("mixed"))
    measure = quotient("all_tok_s", mixed, _at(OURS, 16))
    figure = "mixed lengths: tok/s in and out over 100 words, 64 out"
    yield Target(7, figure, "≥", 0.6, "×", measure, _only("mixed,throughput"))
    idle, behind = (Spot(OURS, "behind", name) for name in ("idle", "behind"))
    measure = quotient("ttft_ms_p50", behind, idle)
    figure = "TTFT p50 of short requests behind 7,000 words over idle"
    yield Target(7, figure, "≤", 3.0, "×", measure, _only("behind"))


def _soak() -> Iterator[Target]:
    command = "make soak MINUTES=20"
    yield Target(8, "soak at 16 clients: length", "≥", 20, "min", _of_soak("minutes"), command)
    yield Target(8, "soak: RSS slope of the steepest process", "<", 1, "MB/min", _growth, command)
    yield Target(8, "soak: failed requests", "≤", 0, "", _of_soak("errors"), command)


def _growth(results: Results) -> float | None:
    return steepest_growth(results.soak)


def _of_soak(name: str) -> Measure:
    return lambda results: None if results.soak is None else float(results.soak[name])
