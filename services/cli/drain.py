"""`headrace drain`: one worker finishes what it holds and is gone; one worker less is wanted of its stage."""

import argparse
import sys

from headrace.cli.api import Api
from headrace.cli.workers import LIMIT_S, wait_until


def run(args: argparse.Namespace) -> int:
    """0 once the worker is gone; 1 when it does not run here, or is still there after 120 s."""
    api = Api(args.url)
    api.post("/headrace/drain", {"wid": args.wid})
    if wait_until(api, lambda listed: all(worker["wid"] != args.wid for worker in listed)):
        return 0
    print(f"headrace: {args.wid} still runs after {LIMIT_S:g} s", file=sys.stderr)
    return 1
