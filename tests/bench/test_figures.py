"""Percentiles, rates and medians."""

import pytest
from figures import median, percentile, ratio, raw, summarise
from load import Load, Reply


def test_a_percentile_is_one_of_the_values():
    values = [float(value) for value in range(100, 0, -1)]

    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (51.0, 100.0, 100.0)
    assert percentile([7.0], 0.99) == 7.0


def test_nothing_has_no_percentile_no_median_no_ratio():
    assert percentile([], 0.5) is None
    assert median([None]) is None
    assert ratio(1.0, 0.0) is None
    assert ratio(None, 1.0) is None


def test_a_median_ignores_what_is_missing():
    assert median([3.0, None, 1.0, 2.0]) == 2.0


def test_a_summary_counts_good_requests_over_the_time_of_all():
    good = Reply(0.0, first_s=0.1, last_s=0.4, ended_s=0.5, gaps_s=[0.3], num_tokens=4, num_prompt_tokens=10)
    good.num_cached_tokens = 5
    bad = Reply(0.0, first_s=0.2, last_s=0.2, ended_s=0.3, num_tokens=9, error="503")

    summary = summarise(Load([good, bad], elapsed_s=2.0))

    assert (summary["requests"], summary["errors"], summary["tok_s"], summary["all_tok_s"]) == (1, 1, 2.0, 7.0)
    assert summary["cached_share"] == 0.5
    assert summary["ttft_ms_p50"] == pytest.approx(100)
    assert summary["tpot_ms_p99"] == pytest.approx(100)
    assert summary["gap_ms_p95"] == pytest.approx(300)
    assert summary["e2e_ms_p50"] == pytest.approx(500)


def test_a_kept_request_has_its_times_in_milliseconds():
    kept = raw(Reply(1.0, first_s=1.25, last_s=1.75, ended_s=2.0, gaps_s=[0.5], num_tokens=3))

    assert (kept["ttft_ms"], kept["tpot_ms"], kept["e2e_ms"], kept["gaps_ms"]) == (250, 250, 1000, [500])
