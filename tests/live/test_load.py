"""Many clients at once, some of whom leave: nobody gets an error, and afterwards nothing is left behind.

The load, the measurements and what counts as left behind are those of bench/soak.py, run as a user runs it.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(240)]

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"
MODEL = "smollm2-135m-instruct"
MARGIN_MIB = {
    "up": 4,
    "ingress": 4,
    "tokenize": 4,
    "router": 4,
    "nats-server": 32,
    "valkey-server": 16,
    "render_child": 4,
}
"""Most that a process may grow in the second half. A stage that holds nothing grows by some tenths of a MiB. The queue
server keeps the logs of half an hour, about 20 KiB a request with its indexes and an untidy heap. The store fills up to
its bound. Prefill and decode: an index entry per block kept, below 2 MiB in seconds; a real model adds scratch memory
and a compiled kernel for each size of batch it meets, 35 MiB in the second half of a minute, flat after four."""
IDLE_SHARE = 0.1
"""Of one core, for the whole tree of processes: twice what is wanted in longer silences, to bear a busy machine."""

Up = Callable[..., contextlib.AbstractContextManager[Any]]


def soak(instance: Any, *args: str) -> Any:
    """Run the soak script with 32 clients; its findings."""
    command = [sys.executable, str(SOAK), "--url", instance.url, "--clients", "32", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def check(found: Any, engines_mib: dict[str, float]) -> None:
    """Nothing went wrong, nothing stayed behind, and memory had stopped growing at half-time."""
    assert found["error_texts"] == {}
    assert found["replaced"] == []
    assert found["busy_gauges"] == []
    assert all(found["ended"][kind] for kind in ("plain", "streamed", "aborted"))
    grown = {name: size["last_mib"] - size["half_mib"] for name, size in found["rss"].items()}
    margins = MARGIN_MIB | engines_mib
    by_program = {name.rpartition("-")[0]: size for name, size in grown.items()}
    assert by_program.keys() >= margins.keys()
    assert {name: size for name, size in by_program.items() if size > margins.get(name, 0)} == {}
    assert found["idle"]["cpu_s"] < IDLE_SHARE * found["idle"]["seconds"]


def test_many_clients_of_the_scripted_model(up: Up, tmp_path: Path) -> None:
    with up(tmp_path, "--model", "scripted") as instance:
        found = soak(instance, "--minutes", "0.25", "--idle-s", "5")

    check(found, {"prefill": 8, "decode": 8})


@pytest.mark.model
def test_many_clients_of_a_real_model(up: Up, tmp_path: Path) -> None:
    """With room for fewer blocks than it makes, so that the store is full before half-time."""
    small = ("--set", f"engine.kv_bytes={160 << 20}", "--set", f"cache.max_bytes={64 << 20}")
    with up(tmp_path, "--model", MODEL, *small) as instance:
        found = soak(instance, "--model", MODEL, "--minutes", "0.75", "--idle-s", "5")

    check(found, {"prefill": 64, "decode": 64})
