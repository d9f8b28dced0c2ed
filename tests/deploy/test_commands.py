"""Every command in compose.yaml is one that the command line takes, and takes whole."""

import pytest

from headrace.cli.arguments import build_parser
from headrace.shared.reports import STAGES


@pytest.fixture
def parse():
    return build_parser().parse_args


def test_every_command_is_taken(own, parse):
    """The images' entry point is `headrace`; a wrong flag would end this with exit code 2."""
    verbs = {name: parse(service["command"]).verb for name, service in own.items()}

    assert verbs == {**{stage: stage for stage in STAGES}, "provision": "check", "models": "models"}


def test_a_word_that_is_no_verb_is_refused(parse, capsys):
    """Without this a command line that takes anything would pass the test above."""
    with pytest.raises(SystemExit, match="2"):
        parse(["serve"])

    assert "serve" in capsys.readouterr().err


def test_the_model_that_is_fetched_is_the_one_that_is_served(own):
    served = {service["environment"]["HEADRACE_MODEL__NAMES"] for service in own.values()}

    assert served == {own["models"]["command"][-1]}
