"""Promises against measurements."""

import pytest
from results import Results, Spot, quotient
from targets import targets


@pytest.fixture
def at_16(make_results):
    """Ours and vLLM at 16 clients over three runs, the middle one on a machine half as fast."""
    ours = ("headrace", "throughput", "c16", {"tok_s": [440.0, 200.0, 430.0], "ttft_ms_p50": [900, 2000, 910]})
    vllm = ("vllm", "throughput", "c16", {"tok_s": [200.0, 100.0, 200.0], "ttft_ms_p50": [2000, 4000, 2000]})
    return make_results(ours, vllm)


def target(part):
    (found,) = [entry for entry in targets() if part in entry.figure]
    return found


def test_every_group_of_promises_has_a_line():
    assert {entry.group for entry in targets()} == set(range(1, 9))


def test_a_ratio_is_taken_within_each_run(at_16):
    ours, vllm = (Spot(server, "throughput", "c16") for server in ("headrace", "vllm"))

    assert quotient("tok_s", ours, vllm)(at_16) == pytest.approx(2.15)
    assert at_16.figure(ours, "tok_s") == 430.0


def test_a_target_is_met_missed_or_not_measured(at_16):
    faster = target("tok/s at 16 clients over vllm")
    sooner = target("16 client(s), over vllm")

    assert faster.is_met(faster.measure(at_16)) is True
    assert sooner.is_met(0.51) is False
    assert faster.is_met(None) is None


def test_growth_is_that_of_the_steepest_process_in_megabytes():
    rss = {"decode-1": {"slope_mib_per_minute": 0.5}, "nats-2": {"slope_mib_per_minute": 0.99}}
    results = Results({"records": []}, soak={"minutes": 20, "errors": 0, "rss": rss})
    slope = target("steepest")

    assert slope.measure(results) == pytest.approx(1.038, abs=1e-3)
    assert slope.is_met(slope.measure(results)) is False
    assert target("clients: length").is_met(20.0) is True


def test_a_run_without_a_soak_says_nothing_about_it(at_16):
    assert [entry.measure(at_16) for entry in targets() if entry.group == 8] == [None, None, None]
