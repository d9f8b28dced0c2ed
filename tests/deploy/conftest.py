"""compose.yaml as the container engine would read it: parsed, anchors merged, variables filled in."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<operator>:[-?])(?P<operand>[^}]*)\}")
ENVIRONMENT = {"NATS_PASSWORD": "secret"}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def compose_text() -> str:
    """compose.yaml with its variables replaced, as with NATS_PASSWORD alone in the environment."""
    return VARIABLE.sub(_replace, (ROOT / "compose.yaml").read_text("utf-8"))


@pytest.fixture(scope="session")
def services(compose_text: str) -> dict[str, Any]:
    return yaml.safe_load(compose_text)["services"]


@pytest.fixture(scope="session")
def own(services: dict[str, Any]) -> dict[str, Any]:
    """The services that run headrace itself."""
    return {name: service for name, service in services.items() if "build" in service}


def _replace(variable: re.Match[str]) -> str:
    value = ENVIRONMENT.get(variable["name"], "")
    if not value and variable["operator"] == ":?":
        raise LookupError(f"compose.yaml needs {variable['name']}, which the documentation does not ask for")
    return value or variable["operand"]
