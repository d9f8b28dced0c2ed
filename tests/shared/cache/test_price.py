"""Fetch or compute: the measured prices decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.cache.price import FetchPrice

MIB = 1 << 20
TOKEN_BYTES = 23_040


def measured(latency_s: float, rate: float) -> FetchPrice:
    price = FetchPrice()
    for _ in range(40):
        price.observe(0, latency_s)
        price.observe(16 * MIB, latency_s + 16 * MIB / rate)
    return price


def test_latency_and_rate_are_learnt():
    price = measured(0.001, 200e6)

    assert price.rate == pytest.approx(200e6, rel=0.01)
    assert price.seconds(0) == pytest.approx(0.001, rel=0.01)
    assert price.seconds(2 * MIB) == pytest.approx(0.001 + 2 * MIB / 200e6, rel=0.01)


@pytest.mark.parametrize(
    ("price", "num_tokens", "prompt_rate", "is_worth_it"),
    [
        (FetchPrice(), 96, 0.0, True),
        (FetchPrice(), 96, 2000.0, True),
        (FetchPrice(), 0, 0.0, False),
        (FetchPrice(), 96, 1e6, False),
        (measured(0.0005, 1e9), 16, 2000.0, True),
        (measured(0.0005, 1e9), 16, 30_000.0, False),
        (measured(0.0005, 20e6), 800, 1000.0, False),
        (measured(0.2, 1e9), 100, 2000.0, False),
        (measured(0.2, 1e9), 1000, 2000.0, True),
    ],
)
def test_what_is_faster_is_done(price, num_tokens, prompt_rate, is_worth_it):
    assert price.is_worth_it(num_tokens, TOKEN_BYTES, prompt_rate) is is_worth_it


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 60)), max_size=30), st.integers(0, 1 << 30))
def test_any_measurement_leaves_a_price(fetches, num_bytes):
    price = FetchPrice()
    for fetch in fetches:
        price.observe(*fetch)

    assert price.rate > 0
    assert price.seconds(num_bytes) >= 0
