"""Every test file tests something."""

import ast


def test_every_test_file_holds_a_test(sources):
    empty = [str(source.path) for source in sources if source.path.name.startswith("test_") and not _tests(source.tree)]

    assert empty == []


def test_every_file_among_the_tests_is_collected(sources):
    """pytest reads test_*.py and conftest.py; a file of another name would look like a test and never run."""
    stray = [str(source.path) for source in sources if source.path.parts[0] == "tests" and not _is_collected(source)]

    assert stray == []


def _tests(tree: ast.Module) -> list[str]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    return [
        node.name
        for owner in (tree, *classes)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def _is_collected(source) -> bool:
    return source.path.name == "conftest.py" or source.path.name.startswith("test_")
