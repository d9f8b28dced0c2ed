"""The ingress stage: HTTP in front of the queue, one process of possibly several behind one listening socket."""

import asyncio
import os
import socket

import structlog
from aiohttp import web

from headrace.ingress.app import build_runner
from headrace.ingress.front import Front
from headrace.shared.config import Config
from headrace.shared.errors import ConfigError
from headrace.shared.reports import State
from headrace.shared.stage import Worker, run_stage

_SETTLE_S = 0.5
"""Time for other ingress processes to see that this one drains."""

log = structlog.get_logger()


def run(config: Config) -> int:
    """Run one ingress process; returns its exit code."""
    return run_stage(config, "ingress", serve)


async def serve(worker: Worker) -> None:
    """Serve HTTP until draining, then let running requests finish for `ingress.drain_s`."""
    front = Front.of(worker)
    await front.inbox.start()
    runner = build_runner(front)
    await runner.setup()
    try:
        site = await _listen(runner, worker.config)
        worker.collect = lambda: {"active": front.gate.num_active}
        worker.update(state=State.READY)
        await worker.draining.wait()
        await _drain(worker, front, site)
    finally:
        await runner.cleanup()
        await front.cleanups.settle()
        await front.inbox.stop()


async def _listen(runner: web.AppRunner, config: Config) -> web.BaseSite:
    """Listen on the supervisor's socket, or on our own."""
    inherited = os.environ.get("HEADRACE_LISTEN_FD")
    if inherited is not None:
        site: web.BaseSite = web.SockSite(runner, socket.socket(fileno=int(inherited)))
    else:
        site = web.TCPSite(runner, config.up.host, config.up.port)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {config.up.host} port {config.up.port}: {error.strerror}") from error
    log.info("listening", address=site.name)
    return site


async def _drain(worker: Worker, front: Front, site: web.BaseSite) -> None:
    """Wait for running requests. New ones are refused here, unless another process can take their connections."""
    limit_s = worker.config.ingress.drain_s
    settle_s = min(_SETTLE_S, limit_s)
    if await _is_idle_within(front, settle_s):
        return
    if any(other.wid != worker.wid for other in worker.registry.ready("ingress")):
        await site.stop()
    if not await _is_idle_within(front, limit_s - settle_s):
        log.warning("drain_incomplete", num_active=front.gate.num_active)


async def _is_idle_within(front: Front, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await front.gate.idle()
    except TimeoutError:
        return False
    return True
