import random

import pytest

from headrace.router import policy
from headrace.router.pricing import InFlight
from headrace.shared.messages import Deadlines, Request, Tokenized
from headrace.shared.packing import pack_ids
from headrace.shared.reports import ModelReport, State, WorkerReport

MODELS = (ModelReport(name="m"),)


def item(num_tokens: int = 100, *, cached: int | None = None) -> Tokenized:
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=600)
    request = Request(rid="r", ing="i", model="m", deadlines=deadlines, max_new=10)
    return Tokenized(request=request, prompt_ids=pack_ids(range(num_tokens)), accepted_ms=0, cached=cached)


def worker(wid: str, **fields: object) -> WorkerReport:
    known = {"stage": "decode", "state": State.READY, "models": MODELS, "slots": 4, "rate": 100.0, "cache_ok": True}
    return WorkerReport(wid=wid, **{**known, **fields})


def choose(
    work: Tokenized, workers: list[WorkerReport], last: str | None = None, *, alone: bool = False, **in_flight: InFlight
) -> str | None:
    rng = random.Random(1)
    return policy.choose(work, workers, in_flight, last_wid=last, alone=alone, rng=rng)


def test_the_least_loaded_worker_is_chosen_by_time_not_by_tokens() -> None:
    workers = [worker("slow", queued_tokens=100, rate=10.0), worker("fast", queued_tokens=500, rate=500.0)]

    assert choose(item(), workers) == "fast"


def test_own_assignments_count_before_a_report_shows_them() -> None:
    workers = [worker("a"), worker("b", queued_tokens=50)]

    assert choose(item(), workers, a=InFlight(num=1, tokens=400)) == "b"


def test_a_full_worker_is_never_chosen() -> None:
    assert choose(item(), [worker("a", active=4)]) is None
    assert choose(item(), [worker("a", active=2)], None, a=InFlight(num=2, tokens=1)) is None
    assert choose(item(), [worker("a", active=3)]) == "a"


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.STOPPED])
def test_only_ready_workers_get_work(state: State) -> None:
    assert choose(item(), [worker("a", state=state)]) is None


def test_a_worker_without_the_model_gets_no_work() -> None:
    assert choose(item(), [worker("a", models=(ModelReport(name="other"),))]) is None


def test_affinity_wins_a_small_difference_but_not_a_large_one() -> None:
    near = [worker("a", queued_tokens=10), worker("b")]
    far = [worker("a", queued_tokens=1000), worker("b")]

    assert choose(item(), near, last="a") == "a"
    assert choose(item(), far, last="a") == "b"


def test_affinity_never_beats_liveness() -> None:
    assert choose(item(), [worker("a", state=State.DRAINING), worker("b")], last="a") == "b"


def test_a_suspect_only_runs_on_an_idle_worker() -> None:
    assert choose(item(), [worker("a", active=1)], alone=True) is None
    assert choose(item(), [worker("a")], alone=True, a=InFlight(num=1, tokens=1)) is None
    assert choose(item(), [worker("a", active=1), worker("b")], alone=True) == "b"


def test_equal_workers_share_by_chance() -> None:
    rng = random.Random(7)
    workers = [worker(name) for name in "abcd"]

    picks = [policy.choose(item(), workers, {}, last_wid=None, alone=False, rng=rng) for _ in range(400)]

    assert all(picks.count(name) > 50 for name in "abcd")


def needs_prefill(
    work: Tokenized, prefill: list[WorkerReport], decode: list[WorkerReport], direct: int = 0, **known: int
) -> bool:
    return policy.needs_prefill(work, prefill, decode, {}, direct_tokens=direct, known_tokens=known)


def test_a_configured_length_decides_alone() -> None:
    prefill, decode = [worker("p", stage="prefill")], [worker("d")]

    assert needs_prefill(item(100), prefill, decode, 48)
    assert not needs_prefill(item(47), prefill, decode, 48)


@pytest.mark.parametrize("direct", [0, 48])
def test_prompts_in_place_and_prompts_without_a_cache_skip_prefill(direct: int) -> None:
    prefill, busy = [worker("p", stage="prefill")], [worker("d", active=3)]

    assert needs_prefill(item(100), prefill, busy, direct)
    assert not needs_prefill(item(100, cached=0), prefill, busy, direct)
    assert not needs_prefill(item(100), [worker("p", stage="prefill", cache_ok=False)], busy, direct)
    assert not needs_prefill(item(100), [], busy, direct)


@pytest.mark.parametrize("other", [{"profile": "bf16"}, {"profile": "fp32", "fingerprint": "beef"}])
def test_blocks_that_decode_could_not_use_are_not_computed_elsewhere(other: dict[str, str]) -> None:
    prefill = [worker("p", stage="prefill", models=(ModelReport(name="m", profile="fp32"),))]
    same, unlike = (
        worker("d", active=3, models=(ModelReport(name="m", **form),)) for form in ({"profile": "fp32"}, other)
    )

    assert needs_prefill(item(100), prefill, [same])
    assert not needs_prefill(item(100), prefill, [unlike])
    assert needs_prefill(item(100), prefill, [unlike, same])
    assert needs_prefill(item(100), prefill, [], 48)


def test_the_price_decides_by_load() -> None:
    prefill = [worker("p", stage="prefill", prompt_rate=2000.0)]

    assert not needs_prefill(item(100), prefill, [worker("d", prompt_rate=2000.0)])
    assert needs_prefill(item(100), prefill, [worker("d", prompt_rate=2000.0, active=2)])


def test_a_session_whose_beginning_a_worker_knows_goes_back_to_it() -> None:
    prefill = [worker("p", stage="prefill", prompt_rate=1000.0)]
    decode = [worker("d", active=3, prompt_rate=1000.0)]

    assert needs_prefill(item(1000), prefill, decode)
    assert not needs_prefill(item(1000), prefill, decode, d=990)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"kv_free_tokens": 109, "active": 1}, False),
        ({"kv_free_tokens": 110, "active": 1}, True),
        ({"kv_free_tokens": 0, "active": 1}, True),
        ({"kv_free_tokens": 5}, True),
    ],
    ids=["too full", "just enough", "unknown", "idle"],
)
def test_a_request_waits_for_kv_room_unless_the_worker_is_idle(fields: dict[str, int], fits: bool) -> None:
    assert (choose(item(100), [worker("a", **fields)]) == "a") is fits


def test_kv_room_that_is_promised_already_is_not_promised_again() -> None:
    full = InFlight(num=1, tokens=1, kv_tokens=100)

    assert choose(item(100), [worker("a", active=1, kv_free_tokens=209)], None, a=full) is None
    assert choose(item(100), [worker("a", active=1, kv_free_tokens=210)], None, a=full) == "a"


def test_prompts_and_outputs_are_worked_off_at_their_own_rates() -> None:
    rates = {"prompt_rate": 1000.0, "token_rate": 100.0}
    prompts = worker("prompts", prompt_tokens=500, **rates)
    outputs = worker("outputs", queued_tokens=100, **rates)

    assert choose(item(), [prompts, outputs]) == "prompts"
    flying = InFlight(num=1, tokens=900, prompt_tokens=900)
    assert choose(item(), [prompts, outputs], None, prompts=flying) == "outputs"
