"""What must be in order before something starts, each question answered on its own with one readable line.

Used by `headrace check`, by the supervisor and by stages. Repairs nothing, except that `check_streams` provisions on
demand.
"""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.shared import catalogue, streams
from headrace.shared.bus.nats import connect
from headrace.shared.config import Cache, Config
from headrace.shared.embedded import data_dir as data_dirs
from headrace.shared.errors import BusError, ConfigError, ModelError
from headrace.shared.settings import load

MIN_NATS_VERSION = (2, 14)
NEEDED_PAYLOAD_BYTES = 8 << 20
"""Prompts travel inline: a body of `limits.max_body_bytes` may become this much as token ids."""
_NATS_PORT = 4222
_NO_REDIS = "cache.url is set but the package redis is not installed: pip install 'headrace[cache]'"


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    name: str
    error: str | None = None
    """What is wrong, or None."""

    def __str__(self) -> str:
        return f"ok {self.name}" if self.error is None else f"FAIL {self.name}: {self.error}"


def require(*checks: Check) -> None:
    """Raise ConfigError for the first check that failed."""
    for check in checks:
        if check.error is not None:
            raise ConfigError(f"{check.name}: {check.error}")


async def check_nats(url: str, *, insecure_dev: bool, timeout_s: float = 3.0) -> Check:
    """Whether a server answers at `url`, is new enough, has JetStream and room, and is not open to strangers."""
    if not url:
        return Check("nats", "nats.url is not set (headrace up starts its own)")
    reason = "no address"
    for address in url.split(","):
        try:
            async with asyncio.timeout(timeout_s):
                info, is_local = await _greeting(address.strip())
        except TimeoutError:
            reason = f"no answer from {_shown(address)} within {timeout_s:g} s"
        except (OSError, ValueError) as error:
            reason = f"cannot reach {_shown(address)}: {_words(error)}"
        else:
            return Check("nats", judge_nats(info, is_local=is_local, insecure_dev=insecure_dev))
    return Check("nats", reason)


def judge_nats(info: dict[str, Any], *, is_local: bool, insecure_dev: bool) -> str | None:
    """What is wrong with a server that greets with `info`, or None."""
    version = str(info.get("version", ""))
    if _numbers(version) < MIN_NATS_VERSION:
        return f"server version {version or 'unknown'} is too old, {'.'.join(map(str, MIN_NATS_VERSION))} is needed"
    if not info.get("jetstream"):
        return "JetStream is off"
    payload = info.get("max_payload", 0)
    if payload < NEEDED_PAYLOAD_BYTES:
        return f"max_payload is {payload} bytes, {NEEDED_PAYLOAD_BYTES} are needed"
    if not (info.get("auth_required") or is_local or insecure_dev):
        return "the server is open to anybody who reaches it: give it a password, or set up.insecure_dev"
    return None


async def check_streams(url: str, *, provision: bool = False, timeout_s: float = 3.0) -> Check:
    """Whether all streams and consumers are as this version wants them; `provision` creates what is missing."""
    try:
        bus = await connect(url, name="headrace-check", timeout_s=timeout_s)
        try:
            drift = await (streams.provision(bus) if provision else streams.check(bus))
        finally:
            await bus.close()
    except (BusError, ConfigError) as error:
        return Check("streams", str(error))
    return Check("streams", "; ".join(drift) or None)


def check_cache(url: str, *, timeout_s: float = 1.0) -> Check:
    """Whether the block store answers and makes room by itself when it is full."""
    try:
        import redis
    except ImportError:
        return Check("cache", _NO_REDIS)
    try:
        client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    except ValueError as error:
        return Check("cache", f"cache.url: {error}")
    try:
        client.ping()
        limits = client.config_get("maxmemory*")
    except redis.exceptions.ResponseError:
        return Check("cache")  # it answers, but its settings are not for us to see
    except redis.exceptions.RedisError as error:
        return Check("cache", f"cannot reach {_shown(url)}: {error}")
    finally:
        client.close()
    if limits.get("maxmemory-policy") == "noeviction":
        return Check("cache", "maxmemory-policy is noeviction: a full store would refuse blocks (use allkeys-lru)")
    return Check("cache")


def check_cache_url(cache: Cache) -> Check:
    """Whether the block store could be asked at all, without asking it: while it is away it is only missed."""
    try:
        from headrace.shared.cache.redis import open_store

        open_store(cache)
    except ImportError:
        return Check("cache", _NO_REDIS)
    except ConfigError as error:
        return Check("cache", str(error))
    return Check("cache")


def check_model(name: str, models_dir: str) -> Check:
    """Whether the model's files are present and whole; reads all of them."""
    try:
        catalogue.resolve(name, models_dir)
    except ModelError as error:
        return Check(f"model {name}", str(error).removeprefix(f"model {name}: "))
    return Check(f"model {name}")


def check_data_dir(path: Path) -> Check:
    """Whether the data directory can be written, or made where it does not exist; makes nothing."""
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check("data-dir", f"{path} cannot be written: {error.strerror}")
    return Check("data-dir")


def check_port(host: str, port: int) -> Check:
    """Whether the HTTP port is free."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as error:
        return Check("port", f"{host} port {port}: {error.strerror or error}")
    return Check("port")


def running_config(path: Path) -> Config | None:
    """The effective configuration of the instance that runs on the data directory `path`, if one does."""
    file = data_dirs.config_file(path)
    if not data_dirs.is_locked(path) or not file.exists():
        return None
    return load(str(file), environ={})


def failed(checks: Sequence[Check]) -> bool:
    """Whether any check failed."""
    return any(check.error is not None for check in checks)


async def _greeting(url: str) -> tuple[dict[str, Any], bool]:
    """The INFO a NATS server sends first, and whether the server is on this machine."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or _NATS_PORT)
    try:
        line = await reader.readline()
        if not line.startswith(b"INFO {"):
            raise ValueError("the server does not speak NATS")
        return json.loads(line[5:]), ip_address(writer.get_extra_info("peername")[0]).is_loopback
    finally:
        writer.close()


def _words(error: Exception) -> str:
    """asyncio puts addresses where the system's own words would be."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def _shown(url: str) -> str:
    """A URL without its user and password."""
    scheme, sep, rest = url.strip().rpartition("://")
    return f"{scheme}{sep}{rest.rpartition('@')[2]}"


def _numbers(version: str) -> tuple[int, ...]:
    head = version.partition("-")[0].split(".")
    return tuple(int(part) for part in head if part.isdigit())
