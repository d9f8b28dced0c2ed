"""A soak on an instance of its own: starts it, lets bench/soak.py load it, stamps the report."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import machine
from instance import headrace
from scenarios import MODEL

CLIENTS = 16
_IDLE_S = 10
_SOAK = Path(__file__).with_name("soak.py")


def soak(minutes: float, folder: Path, out: Path) -> int:
    """Load for `minutes`, write the report to `out`; gives soak.py's exit code, 1 when anything failed."""
    when, options = datetime.now(UTC), ["--minutes", str(minutes), "--clients", str(CLIENTS), "--idle-s", str(_IDLE_S)]
    with headrace("headrace", (), MODEL, folder) as server:
        command = [sys.executable, str(_SOAK), "--url", server.url, "--model", server.model, *options]
        code = subprocess.run([*command, "--out", str(out)], stdout=subprocess.DEVNULL, check=False).returncode
    report = json.loads(out.read_text("utf-8"))
    origin = {"command": machine.command(), "date": when.isoformat(timespec="seconds"), "commit": machine.commit()}
    out.write_text(json.dumps(origin | {"machine": machine.describe()} | report) + "\n", "utf-8")
    print(f"soak: {out}, {report['errors']} errors, {_growth(report)}", file=sys.stderr)
    return code


def _growth(report: dict[str, dict[str, dict[str, float]]]) -> str:
    slopes = {name: process["slope_mib_per_minute"] for name, process in report["rss"].items()}
    return ", ".join(f"{name} {slope:+.2f} MiB/min" for name, slope in slopes.items())
