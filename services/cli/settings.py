"""`headrace config`: every effective setting with its line of documentation, read from the source itself."""

import argparse
import ast
import inspect
import re
import sys

import msgspec

from headrace.shared import config as configuration
from headrace.shared.settings import load

EXIT_BAD_FLAG = 2
_CREDENTIALS = re.compile(r"://[^@/\s]*@")


def run(args: argparse.Namespace) -> int:
    """Print one room or all of them as YAML with comments; passwords in URLs are masked."""
    if args.room not in (None, *configuration.ROOMS):
        print(f"headrace: unknown room {args.room!r} (rooms: {', '.join(configuration.ROOMS)})", file=sys.stderr)
        return EXIT_BAD_FLAG
    effective = load(args.config, args.set)
    for room in [args.room] if args.room else configuration.ROOMS:
        print("\n".join([f"{room}:", *_lines(room, getattr(effective, room))]))
    return 0


def documentation(room: str) -> dict[str, str]:
    """The docstring line under each field of a room."""
    source = ast.parse(inspect.getsource(configuration.room_type(room))).body[0]
    assert isinstance(source, ast.ClassDef)
    found = {}
    for field, text in zip(source.body, source.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def _lines(room: str, values: configuration.Room) -> list[str]:
    meanings = documentation(room)
    return [
        f"  {key}: {_CREDENTIALS.sub('://***@', msgspec.json.encode(getattr(values, key)).decode())}  # {meanings[key]}"
        for key in values.__struct_fields__
    ]
