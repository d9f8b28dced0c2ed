"""Who may import whom, as one table.

Every module of headrace belongs to the layer with the longest matching name. A layer lists the parts of headrace it may
import and the third-party packages it may know; the standard library is open to all. What is not listed is refused.
"""

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

CONTRACTS = "errors ids messages packing records reports subjects config"
PROCESS = f"{CONTRACTS} bus telemetry streams registry runlog slots stage cancels deadletters handover age attempts"
INTEGERS = "engine.sequence engine.blocks engine.ledger engine.pace engine.scheduler engine.scripted"
EVERYWHERE = {"msgspec", "structlog"}
ROOMS = {"ingress", "tokenize", "router", "prefill", "decode", "up", "cli"}


class Layer(NamedTuple):
    """What the modules of one layer may import."""

    headrace: str
    """Parts of headrace.shared, or the room itself; a part stands for everything below it."""
    third_party: str = ""


# A module of headrace.shared, or a room → what it may import.
RULES: dict[str, Layer] = {
    # The contracts: plain data and names, imported by all, importing only each other.
    **{f"shared.{name}": Layer(CONTRACTS) for name in CONTRACTS.split()},
    "shared.settings": Layer(CONTRACTS, "yaml"),
    # The edges: one outside system each, independent of one another.
    "shared.bus": Layer(f"{CONTRACTS} bus", "nats"),
    "shared.cache": Layer(f"{CONTRACTS} cache", "redis"),
    "shared.catalogue": Layer(f"{CONTRACTS} catalogue"),
    "shared.telemetry": Layer(f"{CONTRACTS} telemetry", "prometheus_client"),
    "shared.text": Layer(f"{CONTRACTS} catalogue text", "tokenizers jinja2 gguf"),
    # What every process is built on: queues, registry, run log; no cache, no text, no engine.
    **{f"shared.{name}": Layer(PROCESS) for name in PROCESS.removeprefix(f"{CONTRACTS} bus telemetry ").split()},
    "shared.stage": Layer(PROCESS, "uvloop"),
    # The torch island: integers that decide, tensors that compute; neither queue nor text nor cache anywhere.
    "shared.kernels": Layer("errors kernels", "torch"),
    "shared.model": Layer("errors catalogue kernels model", "torch numpy gguf safetensors"),
    "shared.engine": Layer("errors messages packing records engine kernels model", "torch numpy"),
    **{f"shared.{name}": Layer("errors messages packing records engine") for name in INTEGERS.split()},
    # Around the engine, in the processes that compute: its thread, its making, its blocks on their way to the cache.
    "shared.engine.driver": Layer("engine telemetry"),
    "shared.engine.build": Layer("config errors catalogue engine kernels model", "torch"),
    "shared.blocks": Layer(f"{CONTRACTS} telemetry cache"),
    "shared.serving": Layer(f"{CONTRACTS} telemetry cache catalogue blocks engine"),
    # The rooms know what is shared and never each other. Only two of them compute, only one speaks HTTP.
    "ingress": Layer(f"{PROCESS} catalogue ingress", "aiohttp"),
    "tokenize": Layer(f"{PROCESS} cache catalogue text tokenize"),
    "router": Layer(f"{PROCESS} cache router"),
    "prefill": Layer(f"{PROCESS} engine serving blocks prefill"),
    "decode": Layer(f"{PROCESS} catalogue text engine serving blocks decode"),
    # Before the processes: pre-start checks and the servers that `up` brings along.
    "shared.checks": Layer(f"{CONTRACTS} settings bus cache catalogue streams embedded", "redis"),
    "shared.embedded": Layer(f"{CONTRACTS} embedded"),
    # The command line and the supervisor start rooms by name, as processes, and import none.
    "up": Layer(f"{PROCESS} settings cache catalogue checks embedded up"),
    "cli": Layer(f"{CONTRACTS} settings bus catalogue streams checks cli", "rich"),
    "__main__": Layer(f"{CONTRACTS} settings cli"),
    "": Layer(""),
    "shared": Layer(""),
}


class Import(NamedTuple):
    """One imported module name, with where it stands."""

    where: str
    importer: str
    target: str


@pytest.fixture(scope="session")
def imports(sources) -> list[Import]:
    """Every import of the product, relative ones resolved."""
    return [
        Import(f"{source.path}:{node.lineno}", source.module, target)
        for source in sources
        if source.module
        for node in ast.walk(source.tree)
        for target in _targets(node, source)
    ]


def test_every_module_belongs_to_a_layer(sources):
    homeless = [source.module for source in sources if source.module and _layer(source.module) is None]

    assert homeless == []


def test_modules_import_only_what_their_layer_may(imports):
    refused = [
        f"{edge.where}: {edge.importer} may not import {edge.target}"
        for edge in imports
        if edge.target.split(".")[0] == "headrace" and not _may_import(edge.importer, edge.target)
    ]

    assert refused == []


def test_modules_know_only_the_third_party_packages_of_their_layer(imports):
    refused = [
        f"{edge.where}: {edge.importer} may not import {edge.target}"
        for edge in imports
        if not _may_know(edge.importer, edge.target.split(".")[0])
    ]

    assert refused == []


def test_the_folder_names_are_never_import_roots(sources):
    """`shared.x` beside `headrace.shared.x` would be two copies of one module."""
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        for target in _absolute_targets(node)
        if target.split(".")[0] in {"services", "shared"}
    ]

    assert wrong == []


def test_relative_imports_stay_in_their_folder(sources):
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.level > 1
    ]

    assert wrong == []


def test_no_room_is_open_to_another():
    """Only the command line's entry reaches into a room, the one with its verbs."""
    open_rooms = {name: ROOMS & set(layer.headrace.split()) - {name} for name, layer in RULES.items()}

    assert {name: rooms for name, rooms in open_rooms.items() if rooms} == {"__main__": {"cli"}}


def test_the_table_refuses_what_it_is_there_to_refuse():
    """A room reaching into a room, a scheduler reaching for torch, an edge reaching up."""
    assert not _may_import("headrace.ingress.app", "headrace.decode.loop")
    assert not _may_import("headrace.shared.bus.nats", "headrace.shared.stage")
    assert not _may_import("headrace.shared.engine.scheduler", "headrace.shared.model")
    assert not _may_import("headrace.shared.engine.runner", "headrace.shared.bus")
    assert not _may_import("headrace.ingress.app", "headrace.shared.text")
    assert not _may_know("headrace.shared.engine.scheduler", "torch")
    assert not _may_know("headrace.ingress.app", "torch")
    assert not _may_know("headrace.decode.loop", "aiohttp")


def _layer(module: str) -> Layer | None:
    """The rule with the longest matching name; only the roots themselves match the two root rules."""
    name = module.removeprefix("headrace").lstrip(".")
    if name in RULES:
        return RULES[name]
    while "." in name:
        name = name.rpartition(".")[0]
        if name != "shared" and name in RULES:
            return RULES[name]
    return None


def _may_import(importer: str, target: str) -> bool:
    layer = _layer(importer)
    part = target.removeprefix("headrace").removeprefix(".shared").lstrip(".").split(".")[0]
    return layer is not None and part in {"", "__version__", *layer.headrace.split()}


def _may_know(importer: str, package: str) -> bool:
    layer = _layer(importer)
    known = {"headrace", *sys.stdlib_module_names, *EVERYWHERE}
    return layer is not None and package in known | set(layer.third_party.split())


def _targets(node: ast.AST, source) -> Iterator[str]:
    """Names an import statement may load: for `from a import b` both `a.b`'s parent and, inside headrace, `a.b`."""
    if isinstance(node, ast.ImportFrom):
        package = _package_of(source) if node.level else ""
        base = ".".join(part for part in (package, node.module) if part)
        names_modules = base in {"headrace", "headrace.shared"} or (node.level and not node.module)
        yield from (f"{base}.{alias.name}" for alias in node.names) if names_modules else (base,)
    else:
        yield from _absolute_targets(node)


def _absolute_targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module or ""


def _package_of(source) -> str:
    return source.module if source.path.name == "__init__.py" else source.module.rpartition(".")[0]
