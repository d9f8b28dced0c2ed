import asyncio

import msgspec

from headrace.router.fleet import Fleet
from headrace.shared.messages import Deadlines, Request, Tokenized
from headrace.shared.packing import pack_ids
from headrace.shared.registry import Listener
from headrace.shared.reports import ModelReport, State, WorkerReport


class FakeRegistry:
    """A registry whose entries the test sets."""

    def __init__(self) -> None:
        self.reports: dict[str, WorkerReport] = {}
        self.listeners: list[Listener] = []

    def workers(self, stage: str) -> list[WorkerReport]:
        return [report for report in self.reports.values() if report.stage == stage]

    def get(self, wid: str) -> WorkerReport | None:
        return self.reports.get(wid)

    def on_change(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def report(self, wid: str, **fields: object) -> None:
        known = {"stage": "decode", "state": State.READY, "models": (ModelReport(name="m"),), "slots": 2}
        self.reports[wid] = report = WorkerReport(wid=wid, **{**known, **fields})
        for listener in self.listeners:
            listener(wid, report)

    def gone(self, wid: str) -> None:
        del self.reports[wid]
        for listener in self.listeners:
            listener(wid, None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def item(rid: str = "r", *, session: str = "") -> Tokenized:
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=600)
    request = Request(rid=rid, ing="i", model="m", deadlines=deadlines, max_new=10, session=session)
    return Tokenized(request=request, prompt_ids=pack_ids(range(5)), accepted_ms=0)


def fleet() -> tuple[Fleet, FakeRegistry, Clock]:
    registry, clock = FakeRegistry(), Clock()
    return Fleet(registry, clock), registry, clock  # type: ignore[arg-type]  # the part of it that Fleet uses


def test_assignments_fill_a_worker_until_it_took_and_finished_them() -> None:
    router, registry, _ = fleet()
    registry.report("a")
    router.assigned("a", "decode", item("1"))
    router.assigned("a", "decode", item("2"))

    assert not router.has_room("decode")

    registry.report("a", taken=1, active=1)
    assert not router.has_room("decode")

    registry.report("a", taken=2, active=1)
    assert router.has_room("decode")


def test_a_report_that_does_not_include_an_assignment_makes_no_room() -> None:
    router, registry, clock = fleet()
    registry.report("a")
    router.assigned("a", "decode", item("1"))
    router.assigned("a", "decode", item("2"))

    clock.now = 1.0
    registry.report("a", queued_tokens=1)

    assert not router.has_room("decode")


def test_assignments_that_never_arrived_are_forgotten() -> None:
    router, registry, clock = fleet()
    registry.report("a")
    router.assigned("a", "decode", item("1"))
    router.assigned("a", "decode", item("2"))

    clock.now = 6.0

    assert router.has_room("decode")
    assert router.choose("decode", item("3")) == "a"


def test_a_suspect_keeps_its_worker_until_the_worker_is_idle_again() -> None:
    router, registry, clock = fleet()
    registry.report("a", slots=8)
    router.assigned("a", "decode", item("1"), alone=True)

    registry.report("a", slots=8, taken=1, active=1)
    clock.now = 60.0
    assert router.choose("decode", item("2")) is None

    registry.report("a", slots=8, taken=1, active=0)
    assert router.choose("decode", item("2")) == "a"


def test_assignments_of_a_worker_that_is_gone_are_forgotten() -> None:
    router, registry, _ = fleet()
    registry.report("a")
    router.assigned("a", "decode", item("1"), alone=True)
    registry.gone("a")
    assert not router.has_room("decode")
    registry.report("a")

    assert router.choose("decode", item("2")) == "a"


def test_a_session_returns_to_its_worker() -> None:
    router, registry, clock = fleet()
    for name in "abcdefgh":
        registry.report(name, slots=100)
    router.assigned("e", "decode", item("1", session="s"))
    clock.now = 10.0

    assert {router.choose("decode", item(str(n), session="s")) for n in range(20)} == {"e"}


def test_own_assignments_and_known_sessions_count_in_the_price_of_a_detour() -> None:
    router, registry, _ = fleet()
    rates = {"prompt_rate": 1000.0, "slots": 8}
    registry.report("prefill-a", stage="prefill", cache_ok=True, **rates)
    registry.report("decode-a", **rates)
    first = msgspec.structs.replace(item("1", session="s"), prompt_ids=pack_ids(range(60)))

    assert not router.needs_prefill(first, 0)
    router.assigned("decode-a", "decode", first)
    other = msgspec.structs.replace(item("2"), prompt_ids=pack_ids(range(100)))
    assert router.needs_prefill(other, 0)

    registry.report("decode-a", taken=1, active=3, **rates)
    next_turn = msgspec.structs.replace(item("3", session="s"), prompt_ids=pack_ids(range(80)))
    assert router.needs_prefill(other, 0)
    assert not router.needs_prefill(next_turn, 0)


async def test_waiting_ends_with_the_next_report() -> None:
    router, registry, _ = fleet()
    waiting = asyncio.create_task(router.changed(timeout_s=30))
    await asyncio.sleep(0)
    registry.report("a")

    await asyncio.wait_for(waiting, 1)
