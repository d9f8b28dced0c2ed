"""Every load of the benchmark as data, and the order in which servers are visited. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from workload import Shape

MODEL = "smollm2-135m-instruct"
OURS = "headrace"
UNCACHED = "headrace, cache off"
SCRIPTED = "headrace, scripted"
UP_ARGS: dict[str, tuple[str, ...]] = {
    OURS: (),
    UNCACHED: ("--set", "cache.url=off"),
    SCRIPTED: ("--model", "scripted"),
}
"""What `headrace up` is given beside a port and a data directory: nothing, wherever defaults are measured."""

_EVEN_IN, _EVEN_OUT = 758, 102
"""Means of the mixed lengths."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One load on one server."""

    name: str
    shape: Shape
    primes: bool = False
    """The first request goes alone and is not counted: it leaves the shared words in the cache."""
    behind_words: int = 0
    """Above zero: each request is sent while a prompt of so many words waits for its first token."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Loads that answer one question."""

    text: str
    measurements: tuple[Measurement, ...]
    servers: tuple[str, ...] = (OURS,)
    has_peers: bool = False
    """Whether peers get the same loads."""
    is_alone: bool = False
    """Whether its servers are started for it alone, in turn, in one order in odd runs and the other in even ones."""


SCENARIOS: dict[str, Scenario] = {
    "throughput": Scenario(
        "prompts of 100 words, 64 tokens out, by concurrency",
        tuple(Measurement(f"c{clients}", Shape(clients, max(6, 3 * clients))) for clients in (1, 4, 16, 32)),
        has_peers=True,
    ),
    "long": Scenario(
        "prompts of 600 words, 16 tokens out",
        (Measurement("c4", Shape(4, 12, words=600, out=16)),),
        has_peers=True,
    ),
    "prefix": Scenario(
        "620 words of which the first 600 are new, against the same 600 again",
        (
            Measurement("cold", Shape(1, 6, words=620, out=16)),
            Measurement("warm", Shape(1, 13, words=20, out=16, shared_words=600), primes=True),
        ),
    ),
    "mixed": Scenario(
        "16-1,500 words in and 4-200 tokens out, against all at their means",
        (
            Measurement("even", Shape(16, 48, words=_EVEN_IN, out=_EVEN_OUT)),
            Measurement("mixed", Shape(16, 48, words=(16, 1500), out=(4, 200))),
        ),
    ),
    "behind": Scenario(
        "short requests while a prompt of 7,000 words is read, against an idle server",
        (
            Measurement("idle", Shape(1, 12, out=16)),
            Measurement("behind", Shape(1, 24, out=16), behind_words=7000),
        ),
    ),
    "reuse": Scenario(
        "prompts that share nothing, with the cache on and off",
        (Measurement("c16", Shape(16, 48)),),
        servers=(OURS, UNCACHED),
        is_alone=True,
    ),
    "plumbing": Scenario(
        "the model without weights: what queues and HTTP cost",
        (
            Measurement("first-token", Shape(1, 300, words=20, out=16)),
            Measurement("tokens", Shape(64, 640, words=20, out=64)),
            Measurement("requests", Shape(32, 960, words=20, out=1)),
        ),
        servers=(SCRIPTED,),
    ),
}
WARM_UP = Shape(2, 4)
"""What every server gets before it is measured."""
NUM_LONG = 4
"""Most long prompts sent to have something to be behind."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One start of one server, and what is measured on it."""

    server: str
    loads: tuple[tuple[str, Measurement], ...]
    """(scenario, measurement)."""


def visits(names: Collection[str], peers: Sequence[str], run: int) -> Iterator[Visit]:
    """All visits of one run, in turn: never are two servers up at once."""
    together = [name for name in SCENARIOS if name in names and not SCENARIOS[name].is_alone]
    for server in (OURS, *peers, SCRIPTED):
        loads = tuple(load for name in together if server in _servers(name, peers) for load in _loads(name))
        if loads:
            yield Visit(server, loads)
    for name in SCENARIOS:
        if name in names and SCENARIOS[name].is_alone:
            servers = SCENARIOS[name].servers
            for server in servers if run % 2 else reversed(servers):
                yield Visit(server, tuple(_loads(name)))


def _servers(name: str, peers: Sequence[str]) -> tuple[str, ...]:
    return SCENARIOS[name].servers + (tuple(peers) if SCENARIOS[name].has_peers else ())


def _loads(name: str) -> Iterator[tuple[str, Measurement]]:
    return ((name, measurement) for measurement in SCENARIOS[name].measurements)
