import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.engine.budget import share


@pytest.mark.parametrize(
    ("budget", "pending", "shares"),
    [
        (16, [], []),
        (16, [100], [16]),
        (16, [5], [5]),
        (16, [100, 3, 100], [13, 3, 0]),
        (16, [100, 3, 50], [4, 3, 9]),
        (16, [2, 100, 100], [2, 14, 0]),
        (1, [100, 1], [1, 0]),
        (20, [100, 4, 4], [12, 4, 4]),
        (20, [100, 12, 12], [5, 12, 3]),
    ],
)
def test_a_quarter_of_the_budget_is_the_oldest_ones_the_rest_goes_to_the_shortest(budget, pending, shares):
    assert share(budget, pending) == shares


@given(st.integers(1, 300), st.lists(st.integers(0, 500), max_size=20))
def test_the_budget_is_used_up_and_never_exceeded(budget, pending):
    shares = share(budget, pending)

    assert sum(shares) == min(budget, sum(pending))
    assert all(0 <= given <= wanted for given, wanted in zip(shares, pending, strict=True))
    assert not pending or shares[0] >= min(pending[0], (budget + 3) // 4)
