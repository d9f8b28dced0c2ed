#!/usr/bin/env python3
"""Mixed load on a running instance for some minutes, then a silence; prints what was seen as one JSON document.

Plain, streamed and abandoned requests come from so many clients at once. Meanwhile the memory of every process of the
instance is sampled; afterwards nothing may be left in its gauges, and the CPU time of its silence is counted. Runs on
the instance's own machine: the processes are found below the supervisor, in /proc. Exit code 1 when a request failed,
a process was replaced or a gauge stayed up.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

SAMPLE_S = 2.0
SETTLE_S = 30.0
"""Longest wait for the gauges to come down once the load is over."""
ERRORS_KEPT = 20
LONGEST_PATIENCE_S = 1.0
"""Most that a client who abandons its request waits: some leave before the first token, some amid the text."""
IDLE_GAUGES = tuple(
    f"headrace_{name}" for name in ("requests_active", "slots_used", "kv_blocks_used", "subscriptions", "map_size")
)
WORDS = ("river", "mill", "stone", "wheel", "water", "grain", "miller", "gate", "spring", "valley", "weir", "sluice")
PREAMBLE = "Tell a story about the following words, one after another, without haste."
"""All prompts open with it, so that blocks are found as well as made."""


@dataclass
class Tally:
    """What became of the requests."""

    ended: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    failed: Counter[str] = field(default_factory=Counter)


class Client:
    """One caller: sends requests one after another until told to stop."""

    def __init__(self, args: argparse.Namespace, number: int, tally: Tally) -> None:
        self._api = openai.AsyncOpenAI(base_url=f"{args.url}/v1", api_key="any", max_retries=0, timeout=120)
        self._args = args
        self._rng = random.Random(args.seed * 1000 + number)
        self._tally = tally

    async def run(self, until: float) -> None:
        """Go on until the monotonic time `until`."""
        kinds = list(self._args.mix)
        async with self._api:
            while time.monotonic() < until:
                kind = self._rng.choices(kinds, [self._args.mix[kind] for kind in kinds])[0]
                try:
                    await self._ask(kind)
                    self._tally.ended[kind] += 1
                except (openai.OpenAIError, AssertionError) as error:
                    self._tally.failed[f"{kind}: {type(error).__name__}: {error}"[:300]] += 1

    async def _ask(self, kind: str) -> None:
        if kind == "aborted":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(0, LONGEST_PATIENCE_S)):
                    await self._streamed()
        elif kind == "streamed":
            self._check(*await self._streamed())
        else:
            answer = await self._api.chat.completions.create(**self._body())
            self._check(answer.choices[0].finish_reason, answer.usage)

    async def _streamed(self) -> tuple[str | None, Any]:
        finish_reason = usage = None
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        async with await self._api.chat.completions.create(**self._body(), **options) as stream:
            async for chunk in stream:
                usage = chunk.usage or usage
                finish_reason = next((choice.finish_reason for choice in chunk.choices), None) or finish_reason
        return finish_reason, usage

    def _check(self, finish_reason: str | None, usage: Any) -> None:
        assert finish_reason in ("stop", "length"), f"the answer ended with {finish_reason}"
        assert usage is not None, "the answer has no usage"
        self._tally.num_tokens += usage.completion_tokens

    def _body(self) -> dict[str, Any]:
        words = " ".join(self._rng.choices(WORDS, k=self._rng.randint(1, 60)))
        body: dict[str, Any] = {
            "model": self._args.model,
            "messages": [{"role": "user", "content": f"{PREAMBLE} {words}"}],
            "max_tokens": self._rng.randint(4, 32),
        }
        if self._args.model == "scripted":
            steps = [{"text": "word "}, {"pause_ms": self._rng.randint(1, 40)}]
            body["extra_body"] = {"x_script": {"choices": [steps], "repeat": True}}
        return body


class Processes:
    """The supervisor and everything below it, as /proc shows them."""

    def __init__(self, root: int) -> None:
        self._root = root

    def names(self) -> dict[int, str]:
        """Process id → a name with that id in it, parents first."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := _stat(int(entry.name))):
                children.setdefault(int(stat[1]), []).append(int(entry.name))
        found, queue = {}, [self._root]
        while queue:
            pid = queue.pop(0)
            found[pid] = f"{_program(pid)}-{pid}"
            queue += children.get(pid, [])
        return found

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory by name."""
        page = os.sysconf("SC_PAGE_SIZE")
        return {name: int(stat[21]) * page for pid, name in self.names().items() if (stat := _stat(pid))}

    def cpu_s(self) -> dict[str, float]:
        """User and system time since each process began, by name."""
        tick = os.sysconf("SC_CLK_TCK")
        return {
            name: (int(stat[11]) + int(stat[12])) / tick for pid, name in self.names().items() if (stat := _stat(pid))
        }


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on (state, parent, …); empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
        names = [Path(word).name for word in command]
        if "headrace" in names:
            return command[names.index("headrace") + 1]
        modules = [word.rpartition(".")[2] for word in command if word.startswith("headrace.")]
        return modules[0] if modules else Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    return "gone"


def get(url: str) -> bytes:
    """One GET without a client library, for it is the instance that is measured."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def supervisor_of(url: str) -> int:
    """The pid of the `headrace up` behind `url`: the parent of its ingress."""
    ingress = next(row for row in json.loads(get(f"{url}/headrace/workers")) if row["stage"] == "ingress")
    parent = int(_stat(ingress["pid"])[1])
    if _program(parent) != "up":
        raise SystemExit(f"soak: the parent of ingress {ingress['pid']} is no headrace up on this machine")
    return parent


def busy_gauges(url: str) -> list[str]:
    """Lines of all exporters that should read zero and do not."""
    found = []
    for row in json.loads(get(f"{url}/headrace/workers")):
        if (row["metrics"] or "").endswith("/metrics"):
            lines = get(row["metrics"]).decode().splitlines()
            lines = [line for line in lines if line.startswith(IDLE_GAUGES) and float(line.rsplit(" ", 1)[1])]
            found += [f"{row['wid']} {line}" for line in lines]
    return found


def settled_gauges(url: str) -> list[str]:
    """What is still up when the gauges had time to come down."""
    give_up_at = time.monotonic() + SETTLE_S
    while (busy := busy_gauges(url)) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    return busy


async def sample(processes: Processes, began: float, until: float) -> dict[str, list[tuple[float, int]]]:
    """Resident memory of every process over time: name → (seconds since `began`, bytes)."""
    samples: dict[str, list[tuple[float, int]]] = {}
    while time.monotonic() < until:
        now = round(time.monotonic() - began, 1)
        for name, size in processes.rss_bytes().items():
            samples.setdefault(name, []).append((now, size))
        await asyncio.sleep(SAMPLE_S)
    return samples


def memory(samples: list[tuple[float, int]]) -> dict[str, Any]:
    """First, half-time and last size of one process, and how fast it grew in the second half."""
    half = samples[len(samples) // 2 :]
    mib = [size / 2**20 for _, size in half]
    slope = statistics.linear_regression([at for at, _ in half], mib).slope * 60 if len(half) > 1 else 0.0
    return {
        "first_mib": round(samples[0][1] / 2**20, 1),
        "half_mib": round(mib[0], 1),
        "last_mib": round(mib[-1], 1),
        "slope_mib_per_minute": round(slope, 2),
        "mib_over_time": [(at, round(size / 2**20, 1)) for at, size in samples],
    }


async def load(args: argparse.Namespace, processes: Processes) -> tuple[Tally, dict[str, list[tuple[float, int]]]]:
    """Run all clients for the asked time."""
    tally, began = Tally(), time.monotonic()
    until = began + args.minutes * 60
    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(sample(processes, began, until))
        for number in range(args.clients):
            group.create_task(Client(args, number, tally).run(until))
    return tally, sampling.result()


def idle_cpu(processes: Processes, seconds: float) -> dict[str, Any]:
    """CPU time that the whole tree takes while nobody asks anything."""
    before = processes.cpu_s()
    time.sleep(seconds)
    used = {name: round(spent - before.get(name, 0.0), 2) for name, spent in processes.cpu_s().items()}
    return {"seconds": seconds, "cpu_s": round(sum(used.values()), 2), "cpu_s_by_process": used}


def read_mix(text: str) -> dict[str, int]:
    """`plain=2,streamed=6,aborted=2` as weights."""
    mix = {kind: int(weight) for kind, _, weight in (part.partition("=") for part in text.split(","))}
    if not mix.keys() <= {"plain", "streamed", "aborted"} or min(mix.values()) < 0 or not any(mix.values()):
        raise argparse.ArgumentTypeError("expected weights of plain, streamed and aborted")
    return mix


def read_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the instance (default: %(default)s)")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load (default: %(default)g)")
    parser.add_argument("--clients", type=int, default=8, help="requests at once (default: %(default)s)")
    parser.add_argument("--mix", type=read_mix, default="plain=2,streamed=6,aborted=2", help="default: %(default)s")
    parser.add_argument("--idle-s", type=float, default=60.0, help="length of the silence (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    return parser.parse_args()


def main() -> int:
    """Load, settle, be silent, report."""
    args = read_args()
    processes = Processes(supervisor_of(args.url))
    names = set(processes.names().values())
    tally, samples = asyncio.run(load(args, processes))
    busy = settled_gauges(args.url)
    report = {
        "url": args.url,
        "model": args.model,
        "minutes": args.minutes,
        "clients": args.clients,
        "ended": tally.ended,
        "tokens": tally.num_tokens,
        "errors": sum(tally.failed.values()),
        "error_texts": dict(tally.failed.most_common(ERRORS_KEPT)),
        "replaced": sorted(names ^ set(processes.names().values())),
        "busy_gauges": busy,
        "idle": idle_cpu(processes, args.idle_s),
        "rss": {name: memory(sizes) for name, sizes in samples.items()},
    }
    text = json.dumps(report)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n", "utf-8")
    return 1 if report["errors"] or report["replaced"] or busy else 0


if __name__ == "__main__":
    sys.exit(main())
