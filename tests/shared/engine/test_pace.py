"""The measured pace: what steps cost, and how much of a step prompts may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.engine.pace import Pace

ROW_STEP_S = 0.02
PROMPT_TOKEN_S = 0.0005


def measured(row_step_s: float = ROW_STEP_S, prompt_token_s: float = PROMPT_TOKEN_S) -> Pace:
    """After many steps of both kinds."""
    pace = Pace()
    for _ in range(30):
        pace.observe(0, 100, 100 * prompt_token_s)
        pace.observe(16, 0, row_step_s)
    return pace


def test_rates_are_learnt_from_steps_of_one_kind():
    pace = measured()

    assert pace.prompt_rate == pytest.approx(2000)
    assert pace.token_rate(16) == pytest.approx(16 / ROW_STEP_S)


def test_nothing_is_known_before_the_first_step():
    pace = Pace()
    pace.observe(4, 0, 0.0)

    assert (pace.prompt_rate, pace.token_rate(4)) == (0, 0)
    assert pace.prompt_budget(0, 256) == 256
    assert pace.prompt_budget(4, 256) == 64


def test_of_a_mixed_step_only_what_the_rows_do_not_explain_is_the_prompts():
    pace = measured()
    for _ in range(30):
        pace.observe(16, 40, ROW_STEP_S + 40 * 0.001)

    assert pace.prompt_budget(16, 256) == pytest.approx(20, abs=1)
    assert pace.prompt_rate == pytest.approx(2000)
    assert pace.token_rate(16) == pytest.approx(16 / ROW_STEP_S)


def test_a_first_step_that_warms_up_is_soon_forgotten():
    pace, rates = Pace(), []
    for seconds in (3.0, 0.05, 0.05):
        pace.observe(0, 100, seconds)
        rates.append(pace.prompt_rate)

    assert rates == [0, 0, pytest.approx(2000)]


def test_the_tail_of_a_prompt_says_nothing_of_the_rate():
    """It costs a step like any other, of which it fills little."""
    pace = measured()
    for _ in range(30):
        pace.observe(0, 16, 0.05)

    assert pace.prompt_rate == pytest.approx(2000)


def test_one_slow_step_does_not_turn_the_pace_over():
    pace = measured()
    pace.observe(0, 100, 0.5)

    assert pace.prompt_rate > 500


def test_a_batch_size_never_seen_is_taken_for_the_nearest_one():
    pace = measured()

    assert pace.rows_s(3) == pace.rows_s(200) == ROW_STEP_S


@pytest.mark.parametrize(
    ("num_rows", "row_step_s", "most", "budget"),
    [
        (16, 0.02, 256, 40),
        (16, 0.04, 256, 80),
        (16, 0.04, 50, 50),
        (1, 0.002, 256, 20),
        (0, 0.02, 256, 128),
    ],
)
def test_prompts_take_no_longer_than_the_rows_beside_them(num_rows, row_step_s, most, budget):
    assert measured(row_step_s).prompt_budget(num_rows, most) == pytest.approx(budget, abs=1)


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 300), st.floats(0, 10)), max_size=40),
    st.integers(0, 64),
    st.integers(0, 512),
)
def test_whatever_was_measured_prompts_advance_and_the_step_keeps_its_limit(steps, num_rows, most):
    pace = Pace()
    for step in steps:
        pace.observe(*step)

    assert min(most, 16) <= pace.prompt_budget(num_rows, most) <= most


def test_tokens_far_into_a_prompt_shorten_the_steps_but_tell_nothing_of_the_worker():
    pace = Pace()
    for _ in range(10):
        pace.observe(0, 100, 0.05)
    near = pace.prompt_budget(0, 10_000)
    for _ in range(20):
        pace.observe(0, 100, 0.02 * 100, is_far=True)

    assert pace.prompt_rate == pytest.approx(2000)
    assert pace.prompt_budget(0, 10_000) <= near
