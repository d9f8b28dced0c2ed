"""`headrace check`: everything a start needs, asked one by one; `ok NAME` or `FAIL NAME: reason`."""

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.shared import checks
from headrace.shared.checks import Check
from headrace.shared.config import Config
from headrace.shared.errors import ConfigError
from headrace.shared.settings import load

EXIT_CONFIG = 78
_PLACE, _QUEUE, _CACHE, _MODELS = "place", "queue", "cache", "models"
_NEEDS = {
    None: (_PLACE, _QUEUE, _CACHE, _MODELS),
    "ingress": (_QUEUE,),
    "tokenize": (_QUEUE, _MODELS),
    "router": (_QUEUE, _CACHE),
    "prefill": (_QUEUE, _CACHE, _MODELS),
    "decode": (_QUEUE, _CACHE, _MODELS),
}
"""What `headrace up` (None) or one stage needs."""


def run(args: argparse.Namespace) -> int:
    """Print all answers; 0 when everything is in order, else 78."""
    try:
        config = load(args.config, args.set)
        running = checks.running_config(Path(config.up.data_dir).expanduser())
    except ConfigError as error:
        print(Check("config", str(error)))
        return EXIT_CONFIG
    done = []
    for check in _all(config, running, _NEEDS[args.stage], provision=args.provision):
        print(check, flush=True)
        done.append(check)
    return EXIT_CONFIG if checks.failed(done) else 0


def _all(config: Config, running: Config | None, needs: tuple[str, ...], *, provision: bool) -> Iterator[Check]:
    yield Check("config")
    if _PLACE in needs:
        yield checks.check_data_dir(Path(config.up.data_dir).expanduser())
        if running is None or running.up.port != config.up.port:
            yield checks.check_port(config.up.host, config.up.port)
    if running is not None:
        config = _as_running(config, running)
    if _QUEUE in needs:
        nats = asyncio.run(checks.check_nats(config.nats.url, insecure_dev=config.up.insecure_dev))
        yield nats
        if nats.error is None:
            yield asyncio.run(checks.check_streams(config.nats.url, provision=provision))
    if _CACHE in needs and config.cache.url not in ("", "off"):
        yield checks.check_cache(config.cache.url)
    if _MODELS in needs:
        for name in config.model.names:
            yield checks.check_model(name, config.model.dir)


def _as_running(config: Config, running: Config) -> Config:
    """What is not configured is what the running instance started for itself."""
    replace = msgspec.structs.replace
    return replace(
        config,
        nats=config.nats if config.nats.url else running.nats,
        cache=config.cache if config.cache.url else running.cache,
    )
