"""Every command in compose.yaml is one that the command line takes."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def verbs(own):
    """First words of all commands: the images' entry point is `headrace`."""
    return {service["command"][0] for service in own.values()}


def test_every_command_is_a_verb(verbs):
    refused = {verb: result.stderr for verb in sorted(verbs) if (result := _help(verb)).returncode}

    assert refused == {}


def test_a_word_that_is_no_verb_is_refused():
    """Without this a command line that takes anything would pass the test above."""
    assert _help("serve").returncode == 2


def _help(verb: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("headrace")
    return subprocess.run([command, verb, "--help"], capture_output=True, text=True, timeout=30, check=False)
