"""Getting a connection to a real server, being told why not, and letting go of it."""

import asyncio
import time
from collections.abc import Callable

import pytest

from headrace.shared.bus.nats import connect
from headrace.shared.errors import ConfigError

pytestmark = pytest.mark.live


async def test_connect_says_what_is_wrong(start_nats: Callable) -> None:
    small = start_nats(max_payload="1MB")
    locked = start_nats(options='authorization { user: "u", password: "p" }')
    address = locked.url.removeprefix("nats://")

    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: no NATS server answered within 0\.5 s"):
        await connect("nats://u:secret@127.0.0.1:1", name="t", timeout_s=0.5)
    with pytest.raises(ConfigError, match="max_payload is 1048576, needs at least 8388608"):
        await connect(small.url, name="t", timeout_s=2)
    with pytest.raises(ConfigError, match="refused the user or password") as caught:
        await connect(f"nats://u:wrong@{address}", name="t", timeout_s=2)
    assert "u:wrong" not in str(caught.value)
    with pytest.raises(ConfigError, match="not a NATS URL"):
        await connect("127.0.0.1:4222", name="t", timeout_s=2)
    bus = await connect(f"nats://u:p@{address}", name="t", timeout_s=2)
    assert await bus.rtt() < 2
    await bus.close()


async def test_connect_refuses_an_old_server(listening: Callable) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.12.9","max_payload":8388608,"headers":true}\r\n')
        async for line in reader:
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

    async with listening(serve) as url:
        with pytest.raises(ConfigError, match=r"nats-server is 2\.12, needs 2\.14"):
            await connect(url, name="t", timeout_s=2)


async def test_connect_waits_for_a_server_that_comes_late(start_nats: Callable) -> None:
    server = start_nats()
    server.stop()
    connecting = asyncio.create_task(connect(server.url, name="t", timeout_s=10))
    await asyncio.sleep(0)

    await asyncio.to_thread(server.start)

    bus = await connecting
    assert await bus.rtt() < 2
    await bus.close()


async def test_close_is_quick_when_the_server_is_gone_or_frozen(start_nats: Callable) -> None:
    server = start_nats()
    frozen = await connect(server.url, name="t", timeout_s=5)
    server.freeze()
    started = time.monotonic()
    try:
        await frozen.close()
    finally:
        server.thaw()
    gone = await connect(server.url, name="t", timeout_s=5)
    server.stop()
    await gone.close()

    assert time.monotonic() - started < 5
    assert frozen.closed.is_set()
    assert gone.closed.is_set()
