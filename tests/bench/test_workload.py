"""Prompts and lengths."""

from statistics import mean

import pytest
from workload import Shape, asks, quickened


def test_a_seed_gives_the_same_requests_and_another_seed_others():
    shape = Shape(4, 8)

    assert asks(shape, "1") == asks(shape, "1")
    assert not {ask.prompt for ask in asks(shape, "1")} & {ask.prompt for ask in asks(shape, "2")}


def test_prompts_have_the_asked_length_and_share_only_what_is_asked():
    own = [ask.prompt.split() for ask in asks(Shape(1, 6, words=20, shared_words=30), "1")]

    assert {len(words) for words in own} == {50}
    assert len({tuple(words[:30]) for words in own}) == 1
    assert len({tuple(words[30:]) for words in own}) == 6


@pytest.mark.parametrize("count", [5, 48])
def test_a_span_is_covered_evenly_in_random_order(count):
    lengths = [len(ask.prompt.split()) for ask in asks(Shape(1, count, words=(16, 1500)), "1")]

    assert min(lengths) >= 16
    assert max(lengths) <= 1500
    assert abs(mean(lengths) - 758) < 2
    assert lengths != sorted(lengths)


def test_a_quick_shape_still_has_a_request_for_every_client():
    assert quickened(Shape(1, 300)).num_requests == 100
    assert quickened(Shape(16, 20)).num_requests == 16
