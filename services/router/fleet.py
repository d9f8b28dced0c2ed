"""The router's view of its workers: their reports plus its own assignments that no report shows yet."""

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.router import policy
from headrace.router.pricing import InFlight
from headrace.shared.messages import Tokenized
from headrace.shared.packing import num_packed
from headrace.shared.registry import Registry
from headrace.shared.reports import State, WorkerReport

_LOST_S = 5.0
"""A worker takes an item within milliseconds; one that was not taken by now was purged or taken by another hand."""
_SESSIONS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class _Assignment:
    load: InFlight
    at: float
    alone: bool
    is_taken: bool = False


class Fleet:
    """Workers, assignments in flight, session affinity."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._assigned: dict[str, dict[str, _Assignment]] = {}
        self._taken: dict[str, int] = {}
        self._reserved: dict[str, str] = {}
        """Workers that are given nothing until a suspect that waits for them has run."""
        self._sessions: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """Who served a session last, and how many tokens its prompt had."""
        self._rng = random.Random()  # noqa: S311  # breaks ties between equally good workers
        self._changed = asyncio.Event()
        registry.on_change(self._on_change)

    def has_room(self, stage: str) -> bool:
        """Whether some ready worker of the stage may be given another request."""
        workers, in_flight = self._open(stage), self._in_flight()
        return any(policy.room(worker, in_flight) > 0 for worker in workers)

    def needs_prefill(self, item: Tokenized, direct_tokens: int) -> bool:
        """Whether the prefill stage is the better way for a request; see `policy.needs_prefill`."""
        last = self._sessions.get(self._session("decode", item))
        return policy.needs_prefill(
            item,
            self._open("prefill", item.request.rid),
            self._open("decode", item.request.rid),
            self._in_flight(),
            direct_tokens=direct_tokens,
            known_tokens=dict([last] if last else []),
        )

    def choose(self, stage: str, item: Tokenized, *, alone: bool = False) -> str | None:
        """Pick a worker of the stage, or None when the request has to wait.

        `alone`: only an idle one will do. While there is none, one of several is kept free of new requests until
        `unreserve`, so that a suspect is not overtaken for ever.
        """
        workers = self._open(stage, item.request.rid)
        wid = policy.choose(
            item,
            workers,
            self._in_flight(),
            last_wid=self._sessions.get(self._session(stage, item), (None, 0))[0],
            alone=alone,
            rng=self._rng,
        )
        if wid is None and alone:
            self._reserve(item, workers)
        return wid

    def assigned(self, wid: str, stage: str, item: Tokenized, *, alone: bool = False) -> None:
        """Note an assignment until the worker's own report shows it; `alone` keeps others off until it is idle."""
        load = InFlight(
            num=1,
            tokens=policy.work_tokens(item, stage),
            prompt_tokens=policy.prompt_tokens(item, stage),
            kv_tokens=policy.kv_tokens(item, stage),
        )
        entry = _Assignment(load=load, at=self._clock(), alone=alone)
        self._assigned.setdefault(wid, {})[item.request.rid] = entry
        session = self._session(stage, item)
        if session:
            self._sessions[session] = (wid, num_packed(item.prompt_ids))
            self._sessions.move_to_end(session)
            if len(self._sessions) > _SESSIONS_KEPT:
                self._sessions.popitem(last=False)

    def unassigned(self, wid: str, rid: str) -> None:
        """Take back an assignment that did not come about."""
        self._assigned.get(wid, {}).pop(rid, None)

    def unreserve(self, rid: str) -> None:
        """The request waits no more; idempotent."""
        if self._reserved.pop(rid, None) is not None:
            self._changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Wait until a report may have made room, at most `timeout_s`."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    @staticmethod
    def _session(stage: str, item: Tokenized) -> str:
        return f"{stage}:{item.request.session}" if item.request.session else ""

    def _open(self, stage: str, rid: str = "") -> list[WorkerReport]:
        """Ready workers that may be given requests, those reserved for `rid` included."""
        self._prune()
        shut = {wid for wid, entries in self._assigned.items() if any(e.alone for e in entries.values())}
        shut |= {wid for other, wid in self._reserved.items() if other != rid}
        return [w for w in self._registry.workers(stage) if w.state is State.READY and w.wid not in shut]

    def _reserve(self, item: Tokenized, workers: list[WorkerReport]) -> None:
        """Keep the least busy worker for a suspect, if another one is left for everybody else."""
        able = policy.serving(workers, item.request.model)
        kept = self._reserved.get(item.request.rid)
        if len(able) > 1 and not any(worker.wid == kept for worker in able):
            self._reserved[item.request.rid] = min(able, key=lambda worker: worker.active).wid

    def _in_flight(self) -> dict[str, InFlight]:
        return {
            wid: InFlight(
                num=len(entries),
                tokens=sum(entry.load.tokens for entry in entries.values()),
                prompt_tokens=sum(entry.load.prompt_tokens for entry in entries.values()),
                kv_tokens=sum(entry.load.kv_tokens for entry in entries.values()),
            )
            for wid, entries in self._assigned.items()
            if entries
        }

    def _on_change(self, wid: str, report: WorkerReport | None) -> None:
        if report is None:
            self._taken.pop(wid, None)
        else:
            self._see_taken(wid, report.taken)
        self._changed.set()

    def _see_taken(self, wid: str, taken: int) -> None:
        """Assignments leave in the order in which they were made: the worker takes them from a queue."""
        num_new = taken - self._taken.get(wid, taken)
        self._taken[wid] = taken
        entries = self._assigned.get(wid, {})
        for rid in list(entries)[: max(0, num_new)]:
            if entries[rid].alone:
                entries[rid] = replace(entries[rid], is_taken=True)
            else:
                del entries[rid]

    def _prune(self) -> None:
        """Forget assignments that never arrived, and suspects whose worker is idle again."""
        expired = self._clock() - _LOST_S
        for wid, entries in list(self._assigned.items()):
            report = self._registry.get(wid)
            for rid, entry in list(entries.items()):
                is_over = entry.is_taken and report is not None and report.active == 0
                if report is None or is_over or (entry.at < expired and not entry.is_taken):
                    del entries[rid]
            if not entries:
                del self._assigned[wid]
