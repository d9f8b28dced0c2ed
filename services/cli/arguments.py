"""The grammar of the command line: verbs and their flags. Loads no part of headrace that a flag does not need."""

import argparse
import json
import os

from headrace import __version__
from headrace.shared.reports import STAGES

DEFAULT_URL = "http://127.0.0.1:8080"


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; `parse_args` exits with 2 on a bad flag."""
    parser = argparse.ArgumentParser(prog="headrace", description="LLM serving through queues.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for stage in STAGES:
        _settings(_verb(verbs, stage, f"run one {stage} process against nats.url"))
    _add_up(_verb(verbs, "up", "run the whole system on this machine, supervised"))
    _add_check(_verb(verbs, "check", "tell what is in order and what is not"))
    _add_client_verbs(verbs)
    _add_models(_verb(verbs, "models", "list, fetch and verify model files"))
    config = _verb(verbs, "config", "print the effective settings with their meaning")
    config.add_argument("room", nargs="?", metavar="ROOM", help="one room only")
    _settings(config)
    return parser


def up_settings(args: argparse.Namespace) -> list[str]:
    """The flags of `headrace up` as `room.key=value` settings."""
    values = {
        "up.host": args.host,
        "up.port": args.port,
        "up.data_dir": args.data_dir,
        "up.workers": None if args.workers is None else json.dumps(args.workers),
        "up.insecure_dev": "true" if args.insecure_dev else None,
        "model.names": None if args.model is None else json.dumps(args.model),
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def stage_count(text: str) -> tuple[str, int]:
    """`decode=3` → ("decode", 3)."""
    stage, _, count = text.partition("=")
    if stage not in STAGES:
        raise argparse.ArgumentTypeError(f"unknown stage {stage!r} (stages: {', '.join(STAGES)})")
    if not count.isascii() or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected {stage}=NUMBER")
    return stage, int(count)


def stage_counts(text: str) -> dict[str, int]:
    """`decode=2,ingress=2` → {"decode": 2, "ingress": 2}."""
    return dict(stage_count(part.strip()) for part in text.split(","))


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)


def _settings(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--config", metavar="FILE", help="YAML file with settings")
    verb.add_argument("--set", action="append", default=[], metavar="key=value", help="one setting; may be repeated")


def _add_up(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--host", metavar="H", help="address to listen on")
    verb.add_argument("--port", type=int, metavar="P", help="port to listen on")
    verb.add_argument("--data-dir", metavar="D", help="where queue data, logs and the lock live")
    verb.add_argument("--model", action="extend", nargs="+", metavar="NAME", help="models to serve, the default first")
    verb.add_argument("--workers", type=stage_counts, metavar="decode=2,…", help="workers per stage; one if not named")
    verb.add_argument("--insecure-dev", action="store_true", help="allow strangers to use this server")
    _settings(verb)


def _add_check(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("stage", nargs="?", choices=STAGES, help="only what one process of this stage needs")
    verb.add_argument("--provision", action="store_true", help="create the streams and consumers that are missing")
    _settings(verb)


def _add_client_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    ps = _verb(verbs, "ps", "list all processes of a running instance")
    ps.add_argument("--json", action="store_true", help="machine-readable")
    scale = _verb(verbs, "scale", "change the number of workers and wait until they are ready")
    scale.add_argument("stages", nargs="+", type=stage_count, metavar="stage=n")
    drain = _verb(verbs, "drain", "let one worker finish what it holds, then stop it for good (one less is wanted)")
    drain.add_argument("wid", metavar="WID", help="worker id, see headrace ps")
    chat = _verb(verbs, "chat", "ask the first model")
    chat.add_argument("text")
    for verb in (ps, scale, drain, chat):
        verb.add_argument(
            "--url", default=os.environ.get("HEADRACE_URL") or DEFAULT_URL, help="instance (default: %(default)s)"
        )


def _add_models(verb: argparse.ArgumentParser) -> None:
    actions = verb.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = _verb(actions, "list", "show known and fetched models")
    listing.add_argument("--json", action="store_true", help="machine-readable")
    for name, text in (("pull", "fetch a model, or prove that it is there"), ("verify", "prove a model's checksum")):
        _verb(actions, name, text).add_argument("name", metavar="NAME")
    for action in actions.choices.values():
        _settings(action)
