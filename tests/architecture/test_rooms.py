"""A stage is whole: everything outside its folder that makes it run is there. Each miss is named."""

import ast
import tomllib

import pytest
import yaml

from headrace.shared.reports import STAGES

NOT_STAGES = {"cli", "up"}


@pytest.fixture(params=STAGES)
def stage(request):
    return request.param


def test_every_folder_of_services_is_known(root):
    folders = {path.parent.name for path in (root / "services").glob("*/__init__.py")}

    assert folders == set(STAGES) | NOT_STAGES


def test_the_service_module_has_run(sources, stage):
    """`def run(config: Config) -> int`: what the command line and the supervisor start."""
    service = _tree(sources, f"headrace.{stage}.service")
    signatures = {
        node.name: f"{ast.unparse(node.args)} -> {ast.unparse(node.returns)}"
        for node in service.body
        if isinstance(node, ast.FunctionDef)
    }

    assert signatures.get("run") == "config: Config -> int"


def test_the_configuration_has_a_room(sources, stage):
    config = _tree(sources, "headrace.shared.config")
    rooms = next(node for node in config.body if isinstance(node, ast.ClassDef) and node.name == "Config")

    assert stage in {node.target.id for node in rooms.body if isinstance(node, ast.AnnAssign)}


def test_the_command_line_has_a_verb(sources, stage):
    main = _tree(sources, "headrace.__main__")
    texts = {node.value for node in ast.walk(main) if isinstance(node, ast.Constant)}

    assert f"headrace.{stage}.service:run" in texts


def test_compose_has_a_service(root, stage):
    compose = yaml.safe_load((root / "compose.yaml").read_text("utf-8"))

    assert compose["services"][stage]["command"] == [stage]


def test_the_package_list_has_an_entry(root, stage):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))

    assert f"headrace.{stage}" in project["tool"]["setuptools"]["packages"]


def _tree(sources, module: str) -> ast.Module:
    found = [source.tree for source in sources if source.module == module]
    assert found, f"there is no module {module}"
    return found[0]
