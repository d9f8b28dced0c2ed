"""Both ways of a prompt, priced: what the router should prefer when, as tables, and how a burst spreads."""

import pytest

from headrace.router.pricing import Candidate, InFlight, is_detour_worth_it
from headrace.shared.reports import ModelReport, WorkerReport

MODELS = (ModelReport(name="m", kv_token_bytes=23_040),)
RATE = 2000.0


def prefill(num_flying: int = 0, flying_tokens: int = 0, **fields: object) -> Candidate:
    known = {"stage": "prefill", "models": MODELS, "slots": 16, "prompt_rate": RATE}
    report = WorkerReport(wid="p", **{**known, **fields})
    return Candidate(report, InFlight(num=num_flying, tokens=flying_tokens))


def decode(num_flying: int = 0, flying_tokens: int = 0, *, known: int = 0, **fields: object) -> Candidate:
    usual = {"stage": "decode", "models": MODELS, "slots": 32, "prompt_rate": RATE, "fetch_rate": 1e9}
    report = WorkerReport(wid="d", **{**usual, **fields})
    return Candidate(report, InFlight(num=num_flying, tokens=flying_tokens, prompt_tokens=flying_tokens), known)


@pytest.mark.parametrize(
    ("num_tokens", "on_prefill", "on_decode", "goes_through_prefill"),
    [
        (100, prefill(), decode(), False),
        (50, prefill(), decode(), False),
        (1000, prefill(), decode(), False),
        (7000, prefill(), decode(), True),
        (100, prefill(), decode(active=1, token_rate=200.0), True),
        (100, prefill(), decode(active=1, token_rate=10.0), False),
        (100, prefill(), decode(active=1), True),
        (100, prefill(), decode(active=15), True),
        (16, prefill(), decode(active=15), False),
        (20, prefill(), decode(active=1), False),
        (100, prefill(active=5, queued_tokens=500), decode(active=1), False),
        (100, prefill(active=6, queued_tokens=600), decode(active=15), False),
        (100, prefill(active=3, queued_tokens=300), decode(active=15), True),
        (100, prefill(active=1, queued_tokens=7000), decode(active=15), True),
        (100, prefill(active=1, queued_tokens=7000), decode(), False),
        (800, prefill(), decode(active=1, prompt_tokens=800), True),
        (800, prefill(active=1, queued_tokens=800), decode(), False),
        (100, prefill(prompt_rate=100.0), decode(active=1), False),
        (100, prefill(), decode(prompt_rate=100.0), True),
        (1000, prefill(), decode(active=15, known=1000), False),
        (1000, prefill(), decode(active=1, fetch_rate=1e6), False),
    ],
)
def test_the_way_with_the_earlier_first_token_is_taken(num_tokens, on_prefill, on_decode, goes_through_prefill):
    assert is_detour_worth_it(num_tokens, [on_prefill], [on_decode]) is goes_through_prefill


def test_a_worker_that_has_not_measured_itself_gets_its_chance():
    assert not is_detour_worth_it(100, [prefill()], [decode(prompt_rate=0.0)])
    assert not is_detour_worth_it(100, [prefill(prompt_rate=0.0)], [decode()])


def test_a_stage_without_room_leaves_the_other():
    assert is_detour_worth_it(100, [prefill()], [])
    assert not is_detour_worth_it(100, [], [decode(active=31)])
    assert not is_detour_worth_it(100, [], [])


def test_the_best_worker_of_each_stage_is_compared():
    slow = prefill(active=10, queued_tokens=1000)

    assert not is_detour_worth_it(100, [slow], [decode(active=2)])
    assert is_detour_worth_it(100, [slow, prefill()], [decode(active=2)])
    assert not is_detour_worth_it(100, [slow, prefill()], [decode(active=2), decode()])


@pytest.mark.parametrize("num_tokens", [50, 100, 800, 3000])
@pytest.mark.parametrize("rate", [RATE, 0.0], ids=["measured", "unmeasured"])
def test_a_burst_spreads_over_both_stages(num_tokens, rate):
    """Sixteen at once on idle workers, of which only the router's own assignments tell."""
    num_prefill = num_decode = 0
    for _ in range(16):
        detour = is_detour_worth_it(
            num_tokens,
            [prefill(num_prefill, num_prefill * num_tokens, prompt_rate=rate)],
            [decode(num_decode, num_decode * num_tokens, prompt_rate=rate)],
        )
        num_prefill += detour
        num_decode += not detour

    assert 5 <= num_prefill <= 11


def test_in_the_steady_state_of_many_streams_prompts_go_through_prefill():
    """One at a time comes free, and the stream of its answer would lose more than the hand-over costs."""
    busy = [decode(active=15)]

    assert all(is_detour_worth_it(100, [prefill(active=n, queued_tokens=100 * n)], busy) for n in (0, 1, 2))
