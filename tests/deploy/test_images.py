"""The Dockerfile: linted, and true to what each kind of process needs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.fixture(scope="module")
def dockerfile(root):
    return (root / "Dockerfile").read_text("utf-8")


@pytest.fixture(scope="module")
def extras(dockerfile):
    """Target → the extras of headrace it installs."""
    return {
        re.match(r"\S+ AS (\w+)", stage)[1]: set(found[1].split(","))
        for stage in dockerfile.split("\nFROM ")[1:]
        if (found := re.search(r"\.whl\)\[([\w,]+)\]", stage))
    }


def test_the_linter_has_nothing_to_say(root):
    result = subprocess.run([HADOLINT, "--no-color", root / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (result.stdout, result.returncode) == ("", 0)


def test_the_linter_sees_a_floating_base():
    """Without this a linter that reads nothing would pass the test above."""
    result = subprocess.run([HADOLINT, "-"], input="FROM python:latest\n", capture_output=True, text=True, check=False)

    assert "DL3007" in result.stdout


def test_only_the_engine_holds_torch(extras):
    assert {target for target, names in extras.items() if "engine" in names} == {"engine"}


def test_every_extra_exists(root, extras):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]

    assert set().union(*extras.values()) <= set(project["optional-dependencies"])


def test_no_process_runs_as_root(dockerfile, extras):
    stages = {target: dockerfile.split(f" AS {target}\n")[1].split("\nFROM ")[0] for target in extras}
    users = {target: re.findall(r"(?m)^USER (\S+)$", stage) for target, stage in stages.items()}

    assert users == {target: ["10001"] for target in extras}


def test_the_current_folder_is_never_imported_from(dockerfile):
    """services/tokenize would hide the standard module of that name."""
    assert re.search(r"(?m)^ENV PYTHONSAFEPATH=1\b", dockerfile)


def test_the_build_sees_what_it_copies(root, dockerfile):
    copied = {name for line in re.findall(r"(?m)^COPY (.+)$", dockerfile) for name in line.split()[:-1]}
    let_in = set(re.findall(r"(?m)^!(.+)$", (root / ".dockerignore").read_text("utf-8")))

    assert copied == let_in
    assert all((root / name).exists() for name in copied)
