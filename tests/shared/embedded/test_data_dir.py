"""One instance per data directory."""

import os
import subprocess
import sys

import pytest

from headrace.shared.embedded.data_dir import FOLDERS, is_locked, locked
from headrace.shared.errors import ConfigError


def test_the_directory_is_made_with_its_folders(tmp_path):
    with locked(tmp_path / "a" / "b"):
        assert all((tmp_path / "a" / "b" / name).is_dir() for name in FOLDERS)


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path):
    with locked(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError, match=f"is in use by pid {os.getpid()}$"), locked(tmp_path):
            pass

    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_killed_holder_leaves_no_lock(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from headrace.shared.embedded.data_dir import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=30)

    assert (tmp_path / "lock").exists()
    assert not is_locked(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()

    with (
        pytest.raises(ConfigError, match=r"file/x cannot be written: Not a directory"),
        locked(tmp_path / "file" / "x"),
    ):
        pass


def test_a_directory_that_does_not_exist_is_not_locked(tmp_path):
    assert not is_locked(tmp_path / "none")
