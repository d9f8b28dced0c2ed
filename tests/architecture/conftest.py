"""The project's own source, parsed once: what the architecture tests look at. Nothing of it is imported."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = {"services": "headrace", "shared": "headrace.shared"}


class Source(NamedTuple):
    """One Python file of the project."""

    path: Path
    """Relative to the project's root."""
    module: str
    """Dotted import name; empty for tests and bench, which are not imported by name."""
    tree: ast.Module
    num_lines: int


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every Python file of the product, the tests and the benchmarks."""
    folders = ("services", "shared", "tests", "bench")
    return [_parse(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _parse(path: Path) -> Source:
    text = path.read_text("utf-8")
    relative = path.relative_to(ROOT)
    return Source(relative, _module(relative), ast.parse(text, str(relative)), text.count("\n") + 1)


def _module(relative: Path) -> str:
    top, *rest = relative.with_suffix("").parts
    if top not in IMPORT_ROOTS:
        return ""
    return ".".join([IMPORT_ROOTS[top], *(part for part in rest if part != "__init__")])
