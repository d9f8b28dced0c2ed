import pytest

from headrace.shared.engine import SequenceSpec
from headrace.shared.engine.sequence import Sequence


def make(length=3, max_new=5, num_stop_free=0, **fields):
    spec = SequenceSpec(id="a", prompt=range(length), max_new=max_new, **fields)
    return Sequence(spec, block_tokens=4, max_context=16, num_stop_free=num_stop_free)


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3])
def test_a_run_of_tokens_ends_where_one_by_one_would_end(stop_at):
    run = [50, 51, 52, 53]
    at_once, one_by_one = (make(stop_ids=frozenset({50 + stop_at})) for _ in range(2))

    accepted = at_once.accept(run)
    for token in run:
        if not one_by_one.ending():
            one_by_one.accept([token])

    assert accepted == run[: stop_at + 1]
    assert (at_once.tokens, at_once.ending()) == (one_by_one.tokens, one_by_one.ending())
    assert at_once.ending() == "eos"


def test_a_stop_beyond_the_limit_is_not_reached():
    sequence = make(max_new=2, stop_ids=frozenset({52}))

    assert sequence.accept([50, 51, 52]) == [50, 51]
    assert sequence.ending() == "length"


def test_a_stop_on_the_last_allowed_token_is_a_stop():
    sequence = make(max_new=2, stop_ids=frozenset({51}))

    assert sequence.accept([50, 51, 52]) == [50, 51]
    assert sequence.ending() == "eos"


def test_quoted_tokens_do_not_stop():
    sequence = make(stop_ids=frozenset({50}), num_stop_free=2)

    assert sequence.accept([50]) == [50]
    assert sequence.ending() is None
    assert sequence.accept([50, 51, 50, 52]) == [50, 51, 50]
    assert sequence.ending() == "eos"


def test_the_context_ends_what_the_limit_does_not():
    sequence = make(length=14, max_new=9)

    assert sequence.accept([50, 51, 52]) == [50, 51]
    assert sequence.ending() == "context"


@pytest.mark.parametrize(
    ("length", "max_new", "generated", "num_reusable"),
    [(8, 5, (), 1), (9, 5, (), 2), (8, 5, (1,), 2), (3, 5, (1, 2), 0), (8, 0, (), 2), (7, 0, (), 1)],
)
def test_the_last_known_token_is_always_computed(length, max_new, generated, num_reusable):
    assert make(length=length, max_new=max_new, generated=generated).num_reusable == num_reusable


def test_preemption_forgets_what_is_computed_and_no_token():
    sequence = make()
    sequence.blocks, sequence.num_computed = [7], 3
    sequence.accept([50])

    sequence.preempt()

    assert (sequence.tokens, sequence.num_prompt, sequence.num_pending, sequence.blocks) == ([0, 1, 2, 50], 3, 4, [])
