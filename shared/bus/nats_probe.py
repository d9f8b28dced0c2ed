"""Finding out what is wrong with a NATS server before relying on it.

A connection made to last retries a wrong password or a dead address for ever and tells nobody, so a throw-away one
goes first and turns every obstacle into one readable line.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import nats.errors
from nats.aio.client import Client

from headrace.shared.errors import ConfigError

MIN_PAYLOAD_BYTES = 8 << 20
MIN_SERVER = (2, 14)
_PAUSE_S = 0.2
_TRY_S = 2.0
_CLOSE_S = 2.0


async def probe(url: str, timeout_s: float) -> None:
    """Return once the server at `url` has answered and is good enough; raises ConfigError."""
    if urlsplit(url).scheme not in {"nats", "tls"} or not urlsplit(url).hostname:
        raise ConfigError(f"{without_user(url)}: not a NATS URL (nats://host:port)")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        cause = await _attempt(url, deadline)
        if cause is None:
            return
        if loop.time() + _PAUSE_S >= deadline:
            raise ConfigError(f"{without_user(url)}: no NATS server answered within {timeout_s:g} s ({cause})")
        await asyncio.sleep(_PAUSE_S)


def without_user(url: str) -> str:
    """The URL as it may be shown: without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _attempt(url: str, deadline: float) -> Exception | None:
    """Try once; what went wrong, if trying again may help."""
    client = Client()
    problems: list[Exception] = []

    async def note(error: Exception) -> None:
        problems.append(error)

    try:
        async with asyncio.timeout_at(deadline):
            await client.connect(
                url,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_PAUSE_S,
                connect_timeout=_TRY_S,
                error_cb=note,
            )
        _check_server(url, client)
    except (OSError, TimeoutError, nats.errors.Error) as error:
        if "authorization" in str(error).lower():
            raise ConfigError(f"{without_user(url)}: the server refused the user or password") from None
        return next((each for each in problems if isinstance(each, OSError)), error)
    finally:
        closing = asyncio.get_running_loop().create_task(client.close())
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        closing.cancel()
    return None


def _check_server(url: str, client: Any) -> None:
    version = client.connected_server_version
    if (version.major, version.minor) < MIN_SERVER:
        raise ConfigError(f"{without_user(url)}: nats-server is {version.major}.{version.minor}, needs 2.14 or newer")
    if client.max_payload < MIN_PAYLOAD_BYTES:
        raise ConfigError(
            f"{without_user(url)}: max_payload is {client.max_payload}, needs at least {MIN_PAYLOAD_BYTES} (8 MiB)"
        )
