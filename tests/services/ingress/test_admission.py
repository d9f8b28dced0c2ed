import asyncio
from dataclasses import replace

import pytest

from headrace.ingress.admission import Door, Gate, admit, missing_stage
from headrace.shared.errors import Code, RequestError
from headrace.shared.reports import ModelReport

REPORT = ModelReport(name="m")
OPEN = Door(is_draining=False, num_active=0, max_concurrent=2, missing_stage=None, is_known=True, report=REPORT)


def test_an_open_door_gives_the_model():
    assert admit(OPEN, "m") is REPORT


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"is_known": False}, Code.MODEL_NOT_FOUND),
        ({"is_known": False, "is_draining": True}, Code.MODEL_NOT_FOUND),
        ({"is_draining": True}, Code.OVERLOADED),
        ({"num_active": 2}, Code.OVERLOADED),
        ({"missing_stage": "decode"}, Code.OVERLOADED),
        ({"report": None}, Code.OVERLOADED),
    ],
)
def test_a_closed_door_says_why(change, code):
    with pytest.raises(RequestError) as caught:
        admit(replace(OPEN, **change), "m")

    assert caught.value.failure.code == code


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ("tokenize router prefill decode", None),
        ("tokenize prefill decode", None),
        ("tokenize router decode", None),
        ("tokenize decode", "router"),
        ("router prefill decode", "tokenize"),
        ("tokenize router prefill", "decode"),
        ("", "tokenize"),
    ],
)
def test_which_stages_are_needed(present, missing):
    assert missing_stage(lambda stage: stage in present.split()) == missing


async def test_the_gate_counts_down_even_when_a_request_fails():
    gate = Gate()

    def fail():
        with gate.slot(), gate.slot():
            raise ZeroDivisionError(gate.num_active)

    with pytest.raises(ZeroDivisionError, match="2"):
        fail()

    assert gate.num_active == 0
    await asyncio.wait_for(gate.idle(), 1)
