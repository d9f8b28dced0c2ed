"""The supervisor's decisions: pauses, silence, readiness."""

import pytest

from headrace.shared.reports import STAGES, ModelReport, State, WorkerReport
from headrace.up.plan import STOP_ORDER, Backoff, HangWatch, can_become_ready, missing, wanted_at_start

MODELS = ("a", "b")


def _worker(stage: str, state: State = State.READY, models: tuple[str, ...] = MODELS) -> WorkerReport:
    served = tuple(ModelReport(name=name) for name in models)
    return WorkerReport(stage=stage, wid=f"{stage}-1", state=state, models=served)


def _all_but(*stages: str) -> list[WorkerReport]:
    return [_worker(stage) for stage in STAGES if stage not in stages]


def test_the_pause_doubles_to_its_limit_and_starts_anew_after_a_steady_life():
    backoff = Backoff(1.0)

    assert [backoff.after(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(30.0) == 1
    assert backoff.after(29.9) == 2


def test_a_long_first_pause_is_kept():
    backoff = Backoff(100.0)

    assert [backoff.after(0), backoff.after(0)] == [100, 100]


def test_every_stage_not_named_gets_one_worker():
    assert wanted_at_start({"decode": 3, "prefill": 0}) == {
        "ingress": 1,
        "tokenize": 1,
        "router": 1,
        "prefill": 0,
        "decode": 3,
    }


def test_every_stage_is_stopped_once():
    assert sorted(stage for group in STOP_ORDER for stage in group) == sorted(STAGES)


def test_ready_when_each_stage_has_a_ready_worker_with_all_models():
    assert missing(_all_but(), wanted_at_start({}), MODELS) == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("state", [None, State.STARTING, State.DRAINING, State.STOPPED])
def test_not_ready_without_a_ready_worker_of_each_stage(stage, state):
    workers = _all_but(stage) + ([_worker(stage, state)] if state else [])

    assert missing(workers, wanted_at_start({}), MODELS) == [f"no ready {stage} worker"]


@pytest.mark.parametrize("stage", ["tokenize", "decode"])
def test_not_ready_while_a_model_is_missing(stage):
    workers = [*_all_but(stage), _worker(stage, models=("a",))]

    assert missing(workers, wanted_at_start({}), MODELS) == [f"no ready {stage} worker serves b"]


@pytest.mark.parametrize("stage", ["router", "prefill"])
def test_ready_without_a_stage_that_nobody_wants_and_others_replace(stage):
    wanted = wanted_at_start({stage: 0})

    assert missing(_all_but(stage), wanted, MODELS) == []
    assert can_become_ready(wanted)


@pytest.mark.parametrize("workers", [{"decode": 0}, {"tokenize": 0}, {"router": 0, "prefill": 0}])
def test_never_ready_without_what_every_request_needs(workers):
    wanted = wanted_at_start(workers)

    assert missing(_all_but(*workers), wanted, MODELS) != []
    assert not can_become_ready(wanted)


def test_a_worker_is_hung_after_its_silence_and_named_once():
    watch = HangWatch(10.0)

    assert watch.silent(0.0, ["w", "x"], ["w", "x"]) == []
    assert watch.silent(9.0, ["w", "x"], ["x"]) == []
    assert watch.silent(10.0, ["w", "x"], ["x"]) == ["w"]
    assert watch.silent(30.0, ["w", "x"], ["x"]) == []


def test_a_worker_that_never_registered_is_starting_not_hung():
    watch = HangWatch(10.0)

    assert watch.silent(0.0, ["w"], ["x"]) == []
    assert watch.silent(99.0, ["w"], ["x"]) == []


def test_nobody_is_hung_while_the_registry_is_away():
    watch = HangWatch(10.0)
    watch.silent(0.0, ["w"], ["w"])

    assert watch.silent(100.0, ["w"], []) == []
    assert watch.silent(105.0, ["w"], ["x"]) == []
    assert watch.silent(110.0, ["w"], ["x"]) == ["w"]


def test_a_worker_that_ended_is_not_hung():
    watch = HangWatch(10.0)
    watch.silent(0.0, ["w"], ["w"])

    assert watch.silent(50.0, [], ["x"]) == []
