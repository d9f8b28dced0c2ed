"""The page of busy engines: one line each, freed with the process."""

import os
import subprocess
import sys

from headrace.shared.kernels.cores import claim_line


def test_engines_of_one_process_get_different_lines(tmp_path):
    lines = [claim_line(tmp_path / "cores") for _ in range(3)]

    assert [line and line.index for line in lines] == [0, 1, 2]


def test_the_line_of_a_dead_process_is_free_again(tmp_path):
    script = """
import sys
from pathlib import Path
from headrace.shared.kernels.cores import claim_line
print(claim_line(Path(sys.argv[1])).index)
"""
    command = [sys.executable, "-P", "-c", script, str(tmp_path / "cores")]

    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() for _ in range(2)]

    assert told == ["0", "0"]


def test_a_claimed_line_is_clean(tmp_path):
    (tmp_path / "cores").write_bytes(os.urandom(64 * 64))

    line = claim_line(tmp_path / "cores")

    assert line is not None
    assert line.page[:64] == bytes(64)


def test_a_page_that_cannot_be_had_is_no_error(tmp_path):
    assert claim_line(tmp_path / "missing" / "cores") is None
