"""`make bench`: every scenario on every server in turn, as often as asked; writes table, numbers and picture."""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import machine
import peers
import report
from endurance import soak
from figures import raw, summarise
from instance import headrace
from load import Load, closed_loop, one_by_one_behind
from plot import draw
from processes import Server, ServerError
from scenarios import MODEL, NUM_LONG, SCENARIOS, SCRIPTED, UP_ARGS, WARM_UP, Measurement, Visit, visits
from workload import Ask, Shape, asks, quickened

_ROOT = Path(__file__).resolve().parents[1]
_BUILD = _ROOT / "build"
_OUT = _BUILD / "bench"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    scenarios: tuple[str, ...]
    peers: tuple[str, ...]
    peers_dir: Path
    runs: int
    is_quick: bool

    def serve(self, stop: Visit, run: int) -> AbstractContextManager[Server]:
        """Start the server of a visit, ours or a peer's."""
        server = stop.server
        where = _OUT / "servers" / f"{run}-{stop.loads[0][0]}-{server.replace(', ', '-').replace(' ', '-')}"
        if server in UP_ARGS:
            return headrace(server, UP_ARGS[server], "scripted" if server == SCRIPTED else MODEL, where)
        return peers.PEERS[server].serve(self.peers_dir, where.with_suffix(".log"))

    def shaped(self, shape: Shape) -> Shape:
        """The shape as it is sent."""
        return quickened(shape) if self.is_quick else shape


def measure(server: Server, measurement: Measurement, shape: Shape, seed: str) -> Load:
    """Put one load on a running server."""
    requests = asks(shape, seed)
    if measurement.primes:
        asyncio.run(closed_loop(server.url, server.model, requests[:1], 1))
        requests = requests[1:]
    if measurement.behind_words:
        long: list[Ask] = asks(Shape(1, NUM_LONG, words=measurement.behind_words, out=4), f"{seed} long")
        return asyncio.run(one_by_one_behind(server.url, server.model, long, requests))
    return asyncio.run(closed_loop(server.url, server.model, requests, shape.clients))


def visit(plan: Plan, stop: Visit, run: int, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Start one server, put its loads on it, note each record; gives its memory before and after."""
    began = time.monotonic()
    with plan.serve(stop, run) as server:
        start_s = time.monotonic() - began
        asyncio.run(closed_loop(server.url, server.model, asks(WARM_UP, f"{run} warm-up"), WARM_UP.clients))
        before = server.rss_bytes()
        for scenario, measurement in stop.loads:
            shape = plan.shaped(measurement.shape)
            # The same prompts for every server of a run, and never twice on one server.
            load = measure(server, measurement, shape, f"{run} {scenario} {measurement.name}")
            note(
                {
                    "run": run,
                    "server": stop.server,
                    "scenario": scenario,
                    "name": measurement.name,
                    "shape": asdict(shape),
                    "elapsed_s": round(load.elapsed_s, 3),
                    "figures": summarise(load),
                    "requests": [raw(reply) for reply in load.replies],
                }
            )
        after = server.rss_bytes()
    names = list(dict.fromkeys(scenario for scenario, _ in stop.loads))
    memory = {"rss_before": before, "rss_after": after}
    return {"run": run, "server": stop.server, "scenarios": names, "start_s": round(start_s, 1), **memory}


def carry_out(plan: Plan, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All visits of all runs, as the content of bench.json; what does not start is left out."""
    document: dict[str, Any] = {
        "command": machine.command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "options": {"runs": plan.runs, "quick": plan.is_quick, "scenarios": plan.scenarios, "peers": plan.peers},
        "scenarios": {name: SCENARIOS[name].text for name in plan.scenarios},
        "problems": [],
        "visits": [],
        "records": [],
    }

    def note(record: dict[str, Any]) -> None:
        document["records"].append(record)
        _say(record)

    for run in range(1, plan.runs + 1):
        for stop in visits(plan.scenarios, plan.peers, run):
            try:
                document["visits"].append(visit(plan, stop, run, note))
            except ServerError as error:
                document["problems"].append(f"run {run}: {error}")
                print(document["problems"][-1], file=sys.stderr, flush=True)
            save(document)
    return document


def save(document: dict[str, Any]) -> None:
    """Write bench.json."""
    _OUT.mkdir(parents=True, exist_ok=True)
    (_OUT / "bench.json").write_text(json.dumps(document) + "\n", "utf-8")


def _say(record: dict[str, Any]) -> None:
    """Progress, on stderr."""
    figures = record["figures"]
    shown = ", ".join(
        f"{label} {report.number(figures[name])}"
        for label, name in (("tok/s", "tok_s"), ("TTFT p50 ms", "ttft_ms_p50"), ("TPOT p50 ms", "tpot_ms_p50"))
    )
    errors = {request["error"] for request in record["requests"]} - {""}
    problem = f", {figures['errors']} ERRORS: {'; '.join(sorted(errors)[:3])}" if errors else ""
    where = f"run {record['run']} {record['server']} {record['scenario']} {record['name']}"
    print(f"{where}: {shown}{problem}", file=sys.stderr, flush=True)


def read_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    known = ", ".join(SCENARIOS)
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"scenarios, of {known} (default: all)")
    parser.add_argument("--runs", type=int, help="how often everything is repeated (default: 3, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a third of the requests")
    parser.add_argument("--peers", help="vllm,llamacpp: install them if need be; none; default: those installed")
    default = os.environ.get("HEADRACE_PEERS_DIR", str(_BUILD / "peers"))
    parser.add_argument("--peers-dir", type=Path, default=default, help="(default: $HEADRACE_PEERS_DIR or %(default)s)")
    parser.add_argument(
        "--soak", type=float, default=0.0, metavar="MINUTES", help="soak at the end, or alone (--only=)"
    )
    args = parser.parse_args()
    args.only = [name for name in args.only.split(",") if name]
    if unknown := set(args.only) - SCENARIOS.keys():
        parser.error(f"unknown scenarios {', '.join(sorted(unknown))}; known are {known}")
    wanted = [name for name in (args.peers or "").split(",") if name not in ("", "none")]
    if unknown := set(wanted) - peers.PEERS.keys():
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known are {', '.join(peers.PEERS)}")
    args.peers = wanted if args.peers else peers.installed(args.peers_dir)
    return args


def main() -> int:
    """Run, write, print; 1 when a request failed or a server did not start."""
    args = read_args()
    signal.signal(signal.SIGTERM, _end)
    for name in args.peers:
        peers.install(name, args.peers_dir)
    runs = args.runs or (1 if args.quick else 3)
    plan = Plan(tuple(args.only), tuple(args.peers), args.peers_dir.resolve(), runs, args.quick)
    failed = 0
    if plan.scenarios:
        document = carry_out(plan, save)
        failed += len(document["problems"]) + sum(record["figures"]["errors"] for record in document["records"])
    if args.soak:
        failed += soak(args.soak, _OUT / "servers" / "soak", _BUILD / "soak.json")
    if plan.scenarios:
        publish()
    return 1 if failed else 0


def _end(_signal: int, _frame: FrameType | None) -> None:
    """Leave by an exception, so that no server stays behind."""
    sys.exit(128 + signal.SIGTERM)


def publish() -> None:
    """Table and picture of what bench.json holds; the table is printed as well."""
    results = report.load(_BUILD)
    (_OUT / "bench.png").unlink(missing_ok=True)
    draw(results, _OUT / "bench.png")
    text = report.markdown(results)
    (_OUT / "table.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
