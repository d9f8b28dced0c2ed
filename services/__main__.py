"""The command `headrace`: verbs, flags, exit codes. Everything a verb does is imported when it is asked for.

Exit codes: 0 done, 1 failed, 2 bad flag, 78 configuration or pre-start check, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from headrace.cli.arguments import build_parser, up_settings
from headrace.shared.errors import ConfigError, HeadraceError, ModelError

PROCESSES = {
    "ingress": "headrace.ingress.service:run",
    "tokenize": "headrace.tokenize.service:run",
    "router": "headrace.router.service:run",
    "prefill": "headrace.prefill.service:run",
    "decode": "headrace.decode.service:run",
    "up": "headrace.up.supervisor:run",
}
"""Verbs that become a process: `run(config) -> exit code`."""

COMMANDS = {
    "chat": "headrace.cli.chat:run",
    "check": "headrace.cli.check:run",
    "config": "headrace.cli.settings:run",
    "drain": "headrace.cli.drain:run",
    "models": "headrace.cli.models:run",
    "ps": "headrace.cli.ps:run",
    "scale": "headrace.cli.scale:run",
}
"""Verbs that ask or tell something: `run(parsed arguments) -> exit code`."""

EXIT_FAILED = 1
EXIT_CONFIG = 78
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; errors of ours become one line on stderr."""
    args = build_parser().parse_args(argv)
    try:
        code = _run(args)
        sys.stdout.flush()
    except HeadraceError as error:
        message = str(error).replace("\n", " ")
        print(f"headrace: {message}", file=sys.stderr)
        # A process that cannot load its model would not do better if it were started again.
        is_config = isinstance(error, ConfigError) or (isinstance(error, ModelError) and args.verb in PROCESSES)
        return EXIT_CONFIG if is_config else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Our reader left (`headrace ps | head`); the interpreter must not trip over it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _run(args: argparse.Namespace) -> int:
    if args.verb in COMMANDS:
        return _load(COMMANDS[args.verb])(args)
    from headrace.shared.settings import load

    settings = [*args.set, *(up_settings(args) if args.verb == "up" else ())]
    return _load(PROCESSES[args.verb])(load(args.config, settings))


def _load(target: str) -> Callable[[Any], int]:
    module, _, name = target.partition(":")
    run: Callable[[Any], int] = getattr(import_module(module), name)
    return run


if __name__ == "__main__":
    sys.exit(main())
