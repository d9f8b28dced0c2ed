"""The benchmark's modules import each other by bare names, as `python bench` runs them; here they are found last."""

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)


@pytest.fixture
def make_record():
    """One record of bench.json."""

    def make(server, scenario, name, run=1, **figures):
        shape = {"clients": 16, "num_requests": 48, "words": 100, "out": 64, "shared_words": 0}
        base = {"run": run, "server": server, "scenario": scenario, "name": name, "shape": shape, "requests": []}
        return base | {"figures": {"errors": 0} | figures}

    return make


@pytest.fixture
def make_results(make_record):
    """Results of (server, scenario, name, {figure: value of each run})."""
    from results import Results

    machine = {
        "cpu": "A CPU",
        "vector_extensions": ["avx2"],
        "cores": 2,
        "memory_gib": 24,
        "load_average": [0.0, 0.0, 0.0],
        "python": "3.11",
        "versions": {"headrace": "0.1.0"},
    }

    def make(*loads, scenarios=(), **sidecars):
        records = [
            make_record(*spot, run=run, **dict(zip(figures, values, strict=True)))
            for *spot, figures in loads
            for run, values in enumerate(zip(*figures.values(), strict=True), 1)
        ]
        options = {"runs": 3, "scenarios": list(scenarios)}
        taken = {"command": "make bench", "date": "2000-01-01", "commit": "abc", "options": options, "problems": []}
        return Results({**taken, "machine": machine, "records": records, "visits": []}, **sidecars)

    return make
