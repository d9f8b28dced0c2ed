"""`headrace up`: the whole life of one instance, from the lock to the last server stopped.

Order of start: lock, socket, models, servers, streams, workers. Every step that fails before readiness ends the process
with one line and exit code 78. Order of stop: the reverse.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog

from headrace.shared import checks, streams
from headrace.shared.bus.nats import connect
from headrace.shared.catalogue import resolve
from headrace.shared.config import Config, refuse_unavailable
from headrace.shared.embedded.data_dir import config_file, locked
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.settings import dump
from headrace.shared.telemetry import log as logs
from headrace.up.instance import Instance
from headrace.up.launch import StageLauncher
from headrace.up.plan import wanted_at_start
from headrace.up.relay import Relay, RelayText
from headrace.up.servers import KeptServer, start_servers
from headrace.up.sockets import base_url, listening
from headrace.up.stop import Stop

log = structlog.get_logger()


def run(config: Config) -> int:
    """Run an instance until SIGTERM or SIGINT; returns the exit code, raises ConfigError before it is ready."""
    data_dir = Path(config.up.data_dir).expanduser().absolute()
    relay = Relay()
    with (
        locked(data_dir),
        listening(config.up.host, config.up.port, insecure_dev=config.up.insecure_dev) as listener,
        contextlib.redirect_stderr(RelayText(relay)),
    ):
        models = served_names(config)
        if config.cache.url:
            checks.require(checks.check_cache_url(config.cache))
        config = settled(config, data_dir)
        logs.setup(config.log, "up", "up")
        return asyncio.run(_run(config, data_dir, listener, relay, models))


def served_names(config: Config) -> list[str]:
    """Names under which clients find the models, each proven present, whole and servable; raises ConfigError."""
    try:
        found = [resolve(name, config.model.dir) for name in config.model.names]
    except ModelError as error:
        raise ConfigError(str(error)) from error
    if any(files.kind != "scripted" for files in found):
        refuse_unavailable(config)
    names = [files.name for files in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models would be served as {name!r}")
    return names


def settled(config: Config, data_dir: Path) -> Config:
    """The configuration with what depends on the start filled in: directories and the number of workers."""
    replace = msgspec.structs.replace
    workers = wanted_at_start(config.up.workers)
    return replace(
        config,
        up=replace(config.up, data_dir=str(data_dir), workers=workers),
        log=config.log if config.log.dir else replace(config.log, dir=str(data_dir / "logs")),
    )


def with_urls(config: Config, servers: list[KeptServer]) -> Config:
    """The configuration with the addresses of the embedded servers."""
    replace = msgspec.structs.replace
    for server in servers:
        if server.stage == "nats":
            config = replace(config, nats=replace(config.nats, url=server.url))
        else:
            config = replace(config, cache=replace(config.cache, url=server.url))
    return config


async def _run(config: Config, data_dir: Path, listener: socket.socket, relay: Relay, models: list[str]) -> int:
    stop = Stop()
    stop.listen_to_signals()
    async with AsyncExitStack() as stack:
        servers = await start_servers(config, data_dir, stack)
        config = with_urls(config, servers)
        bus = await connect(config.nats.url, name="up", timeout_s=config.nats.connect_s)
        stack.push_async_callback(bus.close)
        checks.require(await checks.check_nats(config.nats.url, insecure_dev=config.up.insecure_dev))
        drift = await streams.provision(bus)
        if drift:
            raise ConfigError(f"the streams are not as this version wants them: {'; '.join(drift)}")
        log.info("starting", url=base_url(listener), data_dir=str(data_dir), models=models)
        with _handed_over(config, config_file(data_dir)) as file:
            launcher = StageLauncher(file, listener.fileno(), relay)
            code = await Instance(config.up, bus, servers, launcher, models, _announce).run(listener, stop)
    log.info("stopped", code=code, num_lines_dropped=relay.num_dropped)
    return code


def _announce(url: str) -> None:
    with contextlib.suppress(OSError):  # whoever started us need not read
        print(f"ready {url}", flush=True)


@contextlib.contextmanager
def _handed_over(config: Config, file: Path) -> Iterator[Path]:
    """The effective configuration as a file for the stages; it may hold passwords."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(dump(config), "utf-8")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
