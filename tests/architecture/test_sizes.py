"""Nothing grows past what can be read in one go. Wanted: 250 lines a file, 50 a function; here is where it ends."""

import ast

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8


def test_files_stay_readable(sources):
    long = [f"{source.path}: {source.num_lines} lines" for source in sources if source.num_lines > MAX_FILE_LINES]

    assert long == []


def test_functions_stay_readable(sources):
    long = [
        f"{where}: {_lines(node)} lines" for where, node in _functions(sources) if _lines(node) > MAX_FUNCTION_LINES
    ]

    assert long == []


def test_functions_take_few_parameters(sources):
    wide = [
        f"{where}: {len(_parameters(node))} parameters"
        for where, node in _functions(sources)
        if len(_parameters(node)) > MAX_PARAMETERS
    ]

    assert wide == []


def _functions(sources):
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{source.path}:{node.lineno} {node.name}", node


def _lines(node) -> int:
    return node.end_lineno - node.lineno + 1


def _parameters(node) -> list[str]:
    arguments = node.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in named if name not in {"self", "cls"}]
