"""What starting a process loads: each room's service module is imported in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = {
    "headrace.__main__": {"torch", "aiohttp", "tokenizers", "redis", "numpy"},
    "headrace.ingress.service": {"torch", "tokenizers", "numpy"},
    "headrace.tokenize.service": {"torch", "aiohttp"},
    "headrace.router.service": {"torch", "aiohttp", "tokenizers", "numpy"},
    "headrace.prefill.service": {"aiohttp", "tokenizers"},
    "headrace.decode.service": {"aiohttp"},
    "headrace.shared.engine.scheduler": {"torch", "numpy"},
}
PROBE = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


@pytest.mark.parametrize("module", HEAVY)
def test_a_process_loads_no_package_it_does_not_use(module):
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROBE, module], capture_output=True, text=True, timeout=50, check=False
    )

    assert result.returncode == 0, result.stderr
    assert HEAVY[module] & set(result.stdout.split()) == set()
