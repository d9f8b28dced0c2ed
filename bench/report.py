#!/usr/bin/env python3
"""Results as Markdown: the table that `make bench` prints, or with `--write FILE` the results in a document."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import Results, Spot
from scenarios import SCENARIOS
from sidecars import read_cases, read_json
from targets import Target, targets

_BUILD = Path("build")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_COLUMNS = {
    "tok/s": "tok_s",
    "req/s": "req_s",
    "TTFT p50": "ttft_ms_p50",
    "p95": "ttft_ms_p95",
    "p99": "ttft_ms_p99",
    "TPOT p50": "tpot_ms_p50",
    "p95 ": "tpot_ms_p95",
    "p99 ": "tpot_ms_p99",
    "gap p99": "gap_ms_p99",
    "e2e p50": "e2e_ms_p50",
    "e2e p99": "e2e_ms_p99",
}
"""Heading → figure; the blanks keep the headings apart."""


def load(folder: Path) -> Results:
    """Read bench.json under `folder`/bench and what other commands left in `folder`."""
    document = json.loads((folder / "bench" / "bench.json").read_text("utf-8"))
    soak, quality = (read_json(folder / name) for name in ("soak.json", "quality.json"))
    return Results(document, soak, quality, read_cases(folder / "tests.xml"))


def markdown(results: Results) -> str:
    """Everything: where it was taken, the targets, all loads, memory."""
    parts = [_origin(results), _targets_table(results), _loads_table(results), _memory_table(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def replace_results(text: str, results: str) -> str:
    """`text` with what stands between the two markers replaced; raises ValueError without markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{results.strip()}\n\n{END}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are right-aligned."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def number(value: float | None, unit: str = "") -> str:
    """A figure with three digits or so; a dash for none."""
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{digits}f}{f' {unit}' if unit else ''}"


def _origin(results: Results) -> str:
    taken, machine = results.document, results.document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    origin = (
        f"`{taken['command']}` on {taken['date']} at commit {taken['commit'] or 'unknown'}; "
        f"{taken['options']['runs']} run(s), medians.\n"
        f"{machine['cpu']} ({', '.join(machine['vector_extensions'])}), {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, load average {machine['load_average'][0]} at the start; "
        f"Python {machine['python']}, {versions}."
    )
    problems = "".join(f"\n- not measured: {problem.splitlines()[0]}" for problem in taken["problems"])
    return origin + (f"\n{problems}" if problems else "")


def _targets_table(results: Results) -> str:
    """A run of all scenarios shows every target, another those it has a measurement for."""
    is_full = set(results.document["options"]["scenarios"]) == SCENARIOS.keys()
    measured = [(target, target.measure(results)) for target in targets()]
    rows = [_target_row(target, value) for target, value in measured if is_full or value is not None]
    return table(["target", "wanted", "measured", "met", "alone"], rows)


def _target_row(target: Target, measured: float | None) -> list[str]:
    met = {None: "not measured", True: "yes", False: "**no**"}[target.is_met(measured)]
    wanted = f"{target.sign} {number(target.goal, target.unit)}"
    return [f"{target.group}. {target.figure}", wanted, number(measured, target.unit), met, f"`{target.command}`"]


def _loads_table(results: Results) -> str:
    head = ["load", "server", "clients", "words", "out", *_COLUMNS, "cached", "errors"]
    return f"Times in ms.\n\n{table(head, [_load_row(results, spot) for spot in results.spots()])}"


def _load_row(results: Results, spot: Spot) -> list[str]:
    shape = results.shape(spot)
    words = _length(shape["words"]) + (f" + {shape['shared_words']} shared" if shape["shared_words"] else "")
    cached = results.figure(spot, "cached_share")
    return [
        f"{spot.scenario} {spot.name}",
        spot.server,
        str(shape["clients"]),
        words,
        _length(shape["out"]),
        *(number(results.figure(spot, figure)) for figure in _COLUMNS.values()),
        "–" if cached is None else f"{cached:.0%}",
        str(int(sum(value or 0 for value in results.by_run(spot, "errors").values()))),
    ]


def _length(length: int | Sequence[int]) -> str:
    return f"{length}" if isinstance(length, int) else f"{length[0]}-{length[1]}"


def _memory_table(results: Results) -> str:
    rows = [row for visit in results.document["visits"] if visit["run"] == 1 for row in _memory_rows(visit)]
    head = ["resident memory, run 1", "process", "ready, MB", "after its loads, MB"]
    return table(head, rows) if rows else ""


def _memory_rows(visit: Mapping[str, Any]) -> Iterator[list[str]]:
    loads = ", ".join(visit["scenarios"])
    for process, size in visit["rss_after"].items():
        before = visit["rss_before"].get(process)
        yield [f"{visit['server']} ({loads})", process, number(before and before / 1e6), number(size / 1e6)]


def main() -> int:
    """Print, or write into a document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="a document with the two markers")
    parser.add_argument("--build", type=Path, default=_BUILD, help="where the results lie (default: %(default)s)")
    args = parser.parse_args()
    text = markdown(load(args.build))
    if args.write is None:
        print(text, end="")
    else:
        args.write.write_text(replace_results(args.write.read_text("utf-8"), text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
