"""Compiling the kernels: once per machine, and never a reason not to start."""

import subprocess
import sys

import pytest

from headrace.shared.kernels import build

needs_kernels = pytest.mark.skipif(not build.is_supported(), reason="this processor has no AVX512-VNNI")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headrace" / "kernels"


@needs_kernels
def test_a_second_call_finds_what_the_first_compiled(own_cache, monkeypatch):
    path = build.library_path()
    monkeypatch.setattr(build, "_compiler", lambda: pytest.fail("compiled twice"))

    assert path is not None
    assert path.parent == own_cache
    assert build.library_path() == path


@needs_kernels
def test_several_processes_compile_one_library(own_cache):
    command = [sys.executable, "-P", "-m", "headrace.shared.kernels.build"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    told = {process.communicate(timeout=50)[0].splitlines()[-1] for process in started}

    assert len(told) == 1
    assert [path.suffix for path in own_cache.iterdir() if path.suffix != ".lock"] == [".so"]


@needs_kernels
@pytest.mark.parametrize("compiler", [None, ["/no/such/compiler"], ["false"]])
def test_without_a_working_compiler_there_are_no_kernels(own_cache, monkeypatch, compiler):
    monkeypatch.setattr(build, "_compiler", lambda: compiler)

    assert build.library_path() is None
    assert not list(own_cache.glob("*.so"))


def test_another_processor_has_no_kernels(own_cache, monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")

    assert build.library_path() is None
    assert not own_cache.exists()
