"""What other commands left behind."""

import pytest
from sidecars import Case, mean_divergence, num_passed, read_cases, read_json

JUNIT = """<testsuites><testsuite>
<testcase classname="t" name="test_oracle[a]" />
<testcase classname="t" name="test_oracle[b]"><failure message="no" /></testcase>
<testcase classname="t" name="test_other"><skipped /></testcase>
</testsuite></testsuites>"""


def test_nothing_is_read_where_nothing_lies(tmp_path):
    assert read_json(tmp_path / "soak.json") is None
    assert read_cases(tmp_path / "tests.xml") == []


def test_tests_that_ran_have_passed_or_not(tmp_path):
    (tmp_path / "tests.xml").write_text(JUNIT)

    assert read_cases(tmp_path / "tests.xml") == [Case("test_oracle[a]", True), Case("test_oracle[b]", False)]


def test_one_failed_case_leaves_none_passed():
    good, bad = Case("test_oracle[a]", True), Case("test_oracle[b]", False)

    assert num_passed([good, good], "test_oracle") == 2
    assert num_passed([good, bad], "test_oracle") == 0
    assert num_passed([good], "test_other") is None


def test_divergence_is_the_mean_over_tokens_not_texts():
    scores = [
        {"profile": "w8a8", "text": "a", "num_tokens": 100, "mean_kl": 0.01},
        {"profile": "w8a8", "text": "b", "num_tokens": 300, "mean_kl": 0.02},
        {"profile": "bf16", "text": "b", "num_tokens": 300, "mean_kl": 0.5},
    ]

    assert mean_divergence({"scores": scores}, "w8a8") == pytest.approx(0.0175)
    assert mean_divergence({"scores": scores}, "int4") is None
    assert mean_divergence(None, "w8a8") is None


def test_of_several_ways_of_computing_a_profile_the_worst_counts():
    scores = [
        {"profile": form, "mean_kl": kl, "num_tokens": 10} for form, kl in (("int4", 0.001), ("int4-vnni", 0.002))
    ]

    assert mean_divergence({"scores": scores}, "int4") == 0.002
