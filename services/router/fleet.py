"""The router's view of its workers: their reports plus its own assignments that no report shows yet."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from headrace.router import policy
from headrace.router.policy import InFlight
from headrace.shared.messages import Tokenized
from headrace.shared.registry import Registry
from headrace.shared.reports import State, WorkerReport

_VISIBLE_S = 0.5
"""A worker takes an item within milliseconds and reports the change at once: by then its report shows it."""
_SESSIONS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class _Assignment:
    tokens: int
    at: float
    alone: bool


class Fleet:
    """Workers, assignments in flight, session affinity."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._assigned: dict[str, dict[str, _Assignment]] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._rng = random.Random()  # noqa: S311  # breaks ties between equally good workers
        self._changed = asyncio.Event()
        registry.on_change(self._on_change)

    def has_room(self, stage: str) -> bool:
        """Whether some ready worker of the stage may be given another request."""
        workers, in_flight = self._open(stage), self._in_flight()
        return any(policy.room(worker, in_flight) > 0 for worker in workers)

    def choose(self, stage: str, item: Tokenized, *, alone: bool = False) -> str | None:
        """Pick a worker of the stage, or None when the request has to wait. `alone`: only an idle one will do."""
        workers = self._open(stage)
        return policy.choose(
            item,
            workers,
            self._in_flight(),
            last_wid=self._sessions.get(self._session(stage, item)),
            alone=alone,
            rng=self._rng,
        )

    def assigned(self, wid: str, stage: str, item: Tokenized, *, alone: bool = False) -> None:
        """Note an assignment until the worker's own report shows it; `alone` keeps others off until it is idle."""
        tokens = policy.work_tokens(item, stage)
        entry = _Assignment(tokens=tokens, at=self._clock(), alone=alone)
        self._assigned.setdefault(wid, {})[item.request.rid] = entry
        session = self._session(stage, item)
        if session:
            self._sessions[session] = wid
            self._sessions.move_to_end(session)
            if len(self._sessions) > _SESSIONS_KEPT:
                self._sessions.popitem(last=False)

    async def changed(self, timeout_s: float) -> None:
        """Wait until a report may have made room, at most `timeout_s`."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return

    @staticmethod
    def _session(stage: str, item: Tokenized) -> str:
        return f"{stage}:{item.request.session}" if item.request.session else ""

    def _open(self, stage: str) -> list[WorkerReport]:
        self._prune()
        alone = {wid for wid, entries in self._assigned.items() if any(e.alone for e in entries.values())}
        return [w for w in self._registry.workers(stage) if w.state is State.READY and w.wid not in alone]

    def _in_flight(self) -> dict[str, InFlight]:
        return {
            wid: InFlight(num=len(entries), tokens=sum(entry.tokens for entry in entries.values()))
            for wid, entries in self._assigned.items()
        }

    def _on_change(self, _wid: str, _report: WorkerReport | None) -> None:
        self._changed.set()

    def _prune(self) -> None:
        """Forget assignments that reports show by now; a suspect keeps its worker until that worker is idle again."""
        visible = self._clock() - _VISIBLE_S
        for wid, entries in list(self._assigned.items()):
            report = self._registry.get(wid)
            busy = report is not None and report.active > 0
            kept = {rid: e for rid, e in entries.items() if report and (e.at > visible or (e.alone and busy))}
            if kept:
                self._assigned[wid] = kept
            else:
                del self._assigned[wid]
