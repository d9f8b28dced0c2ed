"""The documents speak of things that exist."""

import re

import pytest

DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/decisions.md",
    "docs/performance.md",
    "docs/performance-log.md",
)


@pytest.fixture(params=DOCUMENTS)
def document(request, root):
    return root / request.param


def test_links_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text("utf-8"))

    assert [link for link in links if not (document.parent / link).exists()] == []


def test_named_paths_exist(document, root):
    """A path is in backticks and holds a slash and one of our top-level folders."""
    named = re.findall(r"`((?:services|shared|tests|docs|deploy|bench)/[\w./-]*)`", document.read_text("utf-8"))

    assert [path for path in named if not (root / path).exists()] == []


def test_named_make_targets_exist(document, root):
    targets = set(re.findall(r"(?m)^([a-z]+):", (root / "Makefile").read_text("utf-8")))
    named = set(re.findall(r"(?m)(?:^|`)make ([a-z]+)", document.read_text("utf-8")))

    assert named <= targets
