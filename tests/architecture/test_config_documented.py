"""Every configuration key says what it does: `headrace config` prints the line that stands under it."""

import ast
from itertools import pairwise


def test_every_key_has_a_line_of_documentation(sources):
    (config,) = [source for source in sources if source.module == "headrace.shared.config"]
    rooms = [node for node in config.tree.body if isinstance(node, ast.ClassDef) and _bases(node) == ["Room"]]

    silent = [f"{room.name.lower()}.{key}" for room in rooms for key in _undocumented(room)]

    assert rooms
    assert silent == []


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base) for base in node.bases]


def _undocumented(room: ast.ClassDef) -> list[str]:
    followed = [*pairwise(room.body), (room.body[-1], None)]
    return [
        ast.unparse(node.target) for node, after in followed if isinstance(node, ast.AnnAssign) and not _text(after)
    ]


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value.strip()
    return ""
