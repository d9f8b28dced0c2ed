from types import SimpleNamespace

import pytest

from headrace.ingress.models import ServedModels
from headrace.shared import subjects
from headrace.shared.messages import encode
from headrace.shared.reports import ModelReport, State, WorkerReport
from headrace.shared.settings import load

M, N = ModelReport(name="m"), ModelReport(name="n")


@pytest.fixture
def world():
    """A registry and a clock to turn by hand."""
    world = SimpleNamespace(models=[M], now=0.0)
    registry = SimpleNamespace(models=lambda: world.models)
    config = load(sets=("model.names=m,configured", "ingress.absence_grace_s=10"), environ={})
    world.served = ServedModels(registry, config, clock=lambda: world.now)
    return world


def test_a_served_model_is_found(world):
    assert world.served.find("m") is M
    assert world.served.is_known("m")


def test_an_unknown_model_is_not(world):
    assert world.served.find("x") is None
    assert not world.served.is_known("x")


def test_a_configured_model_is_known_before_a_worker_serves_it(world):
    assert world.served.find("configured") is None
    assert world.served.is_known("configured")


def test_a_model_whose_workers_are_gone_is_remembered(world):
    world.served.note()
    world.models, world.now = [], 1000.0

    assert world.served.find("m") is M


def test_a_model_that_was_replaced_is_forgotten_after_the_grace_period(world):
    world.served.note()
    world.models, world.now = [N], 5.0
    assert world.served.find("m") is M

    world.now = 20.0

    assert world.served.find("m") is None
    assert world.served.find("n") is N


@pytest.mark.parametrize("created", [-(2**60), 2**60])
async def test_a_model_file_with_an_odd_date_is_listed(door, created):
    model = ModelReport(name="scripted", created=created)
    report = WorkerReport(stage="tokenize", wid="tokenize-1", state=State.READY, models=(model,))
    await door.registry_bus.publish(subjects.worker_key("tokenize", report.wid), encode(report))
    await door.front.registry.refresh()

    answer = await door.get("/v1/models")

    assert answer.status == 200
    assert answer.json["data"][0]["created"] >= 0
