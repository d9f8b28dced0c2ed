"""`headrace ps`: all processes of a running instance."""

import argparse
import json
import sys
from typing import Any

from headrace.cli.api import Api
from headrace.cli.workers import COLUMNS, workers


def run(args: argparse.Namespace) -> int:
    """Print the workers as a table, or as JSON."""
    listed = workers(Api(args.url))
    if args.json:
        print(json.dumps(listed))
    elif sys.stdout.isatty():
        _print_rich(listed)
    else:
        print(plain_table(listed))
    return 0


def plain_table(listed: list[dict[str, Any]]) -> str:
    """Columns aligned by spaces."""
    rows = [[column.upper() for column in COLUMNS], *_rows(listed)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _rows(listed: list[dict[str, Any]]) -> list[list[str]]:
    return [["" if worker[column] is None else str(worker[column]) for column in COLUMNS] for worker in listed]


def _print_rich(listed: list[dict[str, Any]]) -> None:
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain_table(listed))
        return
    table = Table(*COLUMNS, box=SIMPLE, pad_edge=False)
    for row in _rows(listed):
        table.add_row(*row)
    Console().print(table)
