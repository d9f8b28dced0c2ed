import subprocess
import sys
from pathlib import Path

import pytest

from headrace.shared.catalogue import ModelFiles
from headrace.shared.engine.build import build_engine, fair_threads
from headrace.shared.errors import ConfigError
from headrace.shared.settings import load

SCRIPTED = ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="f" * 64)


def test_the_scripted_engine_takes_its_block_size_from_the_configuration():
    built = build_engine(SCRIPTED, load(sets=["engine.block_tokens=32"], environ={}), "decode")

    assert built.engine.block_tokens == 32
    assert (built.profile, built.fingerprint) == ("scripted", "f" * 64)


@pytest.mark.parametrize("setting", ["engine.profile=bf16", "prefill.profile=fp32", "decode.profile=int4"])
def test_determinism_refuses_a_form_that_does_not_keep_it(setting):
    files = ModelFiles(name="m", kind="hf", path=Path("/nowhere"), fingerprint="0")
    config = load(sets=["engine.deterministic=true", setting], environ={})

    with pytest.raises(ConfigError, match=f"{setting} is not row-invariant"):
        build_engine(files, config, "decode")


def test_engines_divide_the_cores_and_each_has_one():
    assert fair_threads({}, 16) == 8
    assert fair_threads({"prefill": 0, "decode": 1}, 16) == 16
    assert fair_threads({"decode": 5, "prefill": 3}, 4) == 1


def test_a_worker_that_serves_only_the_scripted_model_never_loads_torch():
    program = """
import sys
from pathlib import Path
from headrace.shared.catalogue import ModelFiles
from headrace.shared.settings import load
from headrace.shared.engine.build import build_engine
build_engine(ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="0"), load(environ={}), "decode")
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
