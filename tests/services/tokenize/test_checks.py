"""What is refused before anything is computed."""

import pytest

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Deadlines, Sampling, Script, ScriptStep
from headrace.tokenize.checks import check_request

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": NAN}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": INF}, "min_p"),
        ({"presence": 3.0}, "presence_penalty"),
        ({"frequency": NAN}, "frequency_penalty"),
        ({"repetition": 0.0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {262: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("a", "b", "c", "d", "e")}, "stop"),
        ({"stop": ("x" * 65,)}, "stop"),
        ({"stop_ids": (262,)}, "stop_token_ids"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(accepted, served, sampling, param):
    request = accepted(sampling=Sampling(**sampling)).request

    with pytest.raises(RequestError) as caught:
        check_request(request, served.model)

    assert (caught.value.failure.code, caught.value.failure.param) == (Code.INVALID_REQUEST, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 3_000_000}, "n"),
        ({"max_new": -1}, "max_tokens"),
        ({"deadlines": Deadlines(queue_s=0, first_token_s=1, stall_s=1, total_s=1)}, "deadlines.queue_s"),
        ({"deadlines": Deadlines(queue_s=1, first_token_s=1, stall_s=1, total_s=NAN)}, "deadlines.total_s"),
        ({"session": "s" * 513}, "session_id"),
        ({"cache_salt": "s" * 1025}, "cache_salt"),
        ({"script": Script(choices=((ScriptStep(pause_ms=10**15),),))}, "x_script"),
        ({"script": Script(choices=((ScriptStep(pause_ms=-1),),))}, "x_script"),
        ({"script": Script(choices=((ScriptStep(text="a"), ScriptStep(random=2**40)),))}, "x_script"),
        ({"script": Script(choices=((ScriptStep(random=0),),))}, "x_script"),
    ],
)
def test_request_fields_out_of_range_are_refused_by_name(accepted, served, fields, param):
    with pytest.raises(RequestError) as caught:
        check_request(accepted(**fields).request, served.model)

    assert caught.value.failure.param == param


def test_what_ingress_lets_through_passes(accepted, served):
    sampling = Sampling(temperature=0, top_p=1e-6, top_k=0, stop=("a",), stop_ids=(261,), logit_bias={0: -100.0})

    script = Script(choices=((ScriptStep(pause_ms=3_600_000), ScriptStep(random=100_000), ScriptStep(eos=True)),))

    for played in (Script(), script):
        check_request(accepted(sampling=sampling, max_new=0, script=played).request, served.model)


def test_a_script_is_refused_by_other_models(accepted, served):
    class Other:
        name, vocab_size = "smollm2", 10

    with pytest.raises(RequestError, match="x_script"):
        check_request(accepted(script=Script()).request, Other())
