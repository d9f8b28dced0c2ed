"""`headrace models`: what lies in the models directory, fetched and verified."""

import argparse
import json
import sys
from dataclasses import asdict

from headrace.shared import catalogue
from headrace.shared.settings import load


def run(args: argparse.Namespace) -> int:
    """List, pull or verify; raises ModelError."""
    models_dir = load(args.config, args.set).model.dir
    if args.action == "pull":
        catalogue.pull(args.name, models_dir, lambda line: print(line, file=sys.stderr))
        print(f"ok {args.name}")
    elif args.action == "verify":
        catalogue.verify(args.name, models_dir)
        print(f"ok {args.name}")
    else:
        _print_listing(catalogue.listing(models_dir), as_json=args.json)
    return 0


def _print_listing(entries: list[catalogue.Entry], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries]))
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = "present" if entry.present else "absent "
        print(f"{entry.name.ljust(width)}  {state}  {entry.size_bytes / 1e6:7.1f} MB  {entry.source}")
