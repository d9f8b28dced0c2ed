"""What starting a process loads: each room's service module is imported in a fresh interpreter."""

import subprocess
import sys

import pytest

UNWANTED = {
    "headrace.__main__": {"torch", "aiohttp", "tokenizers", "redis", "numpy"},
    "headrace.ingress.service": {"torch", "tokenizers", "numpy"},
    "headrace.tokenize.service": {"torch", "aiohttp"},
    "headrace.router.service": {"torch", "aiohttp", "tokenizers", "numpy"},
    "headrace.prefill.service": {"aiohttp", "tokenizers"},
    "headrace.decode.service": {"aiohttp"},
    "headrace.shared.engine.scheduler": {"torch", "numpy"},
}
TAKEN_IF_THERE = {"aiohttp"}
"""nats-py loads it for websockets wherever it is installed; only the ingress image has it, so the others go without."""

PROBE = """
import importlib, sys
module, *absent = sys.argv[1:]
sys.modules.update(dict.fromkeys(absent))  # None: importing it fails as if it were not installed
importlib.import_module(module)
print(*(name for name, loaded in sys.modules.items() if loaded))
"""


@pytest.mark.parametrize("module", UNWANTED)
def test_a_process_neither_needs_nor_loads_what_it_does_not_use(module):
    absent = UNWANTED[module] & TAKEN_IF_THERE
    command = [sys.executable, "-P", "-c", PROBE, module, *absent]

    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert result.returncode == 0, result.stderr
    assert UNWANTED[module] & set(result.stdout.split()) == set()
