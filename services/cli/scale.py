"""`headrace scale`: another number of workers, and the wait until they are ready."""

import argparse
import sys

from headrace.cli.api import Api
from headrace.cli.workers import LIMIT_S, num_ready, wait_until


def run(args: argparse.Namespace) -> int:
    """0 once each named stage has as many ready workers as asked for; 1 after 120 s."""
    wanted = dict(args.stages)
    api = Api(args.url)
    api.post("/headrace/scale", {"stages": wanted})
    if wait_until(api, lambda listed: all(num_ready(listed, stage) == count for stage, count in wanted.items())):
        return 0
    print(f"headrace: not as asked for after {LIMIT_S:g} s, see headrace ps", file=sys.stderr)
    return 1
