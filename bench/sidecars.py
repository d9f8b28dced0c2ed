"""Figures that other commands leave in `build/`: of the soak, the numeric forms' quality, the tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET


class Case(NamedTuple):
    """One test that ran."""

    name: str
    """With its parameters in brackets."""
    has_passed: bool


def read_json(path: Path) -> dict[str, Any] | None:
    """A report, or None if nobody wrote one."""
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def read_cases(path: Path) -> list[Case]:
    """Tests of a JUnit file that were not skipped; none without the file."""
    if not path.exists():
        return []
    found = ET.parse(path).iter("testcase")
    ran = [case for case in found if case.find("skipped") is None]
    return [Case(case.get("name", ""), case.find("failure") is None and case.find("error") is None) for case in ran]


def num_passed(cases: Sequence[Case], test: str) -> float | None:
    """How many cases of the test passed: zero as soon as one failed, None when it did not run."""
    mine = [case for case in cases if test in case.name]
    return float(len(mine) * all(case.has_passed for case in mine)) if mine else None


def mean_divergence(quality: Mapping[str, Any] | None, profile: str) -> float | None:
    """Mean KL from fp32 over all tokens of all texts, as bench/quality.py reports it; of several ways of computing a
    profile (`int4-vnni` is one of int4's) the worst.
    """
    scores = (quality or {}).get("scores", ())
    forms = {score["profile"] for score in scores if score["profile"].split("-")[0] == profile}
    return max((_mean([score for score in scores if score["profile"] == form]) for form in forms), default=None)


def _mean(scores: list[Mapping[str, Any]]) -> float:
    num_tokens = sum(score["num_tokens"] for score in scores)
    return float(sum(score["mean_kl"] * score["num_tokens"] for score in scores) / num_tokens)


def steepest_growth(soak: Mapping[str, Any] | None) -> float | None:
    """MB per minute of the process that grew most in the second half of the soak."""
    if soak is None:
        return None
    return max(float(process["slope_mib_per_minute"]) for process in soak["rss"].values()) * 2**20 / 1e6
