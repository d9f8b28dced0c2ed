"""Asking the front door: only a 200 counts."""

import asyncio

import pytest

from headrace.up.front_door import is_open


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", True), (b"HTTP/1.1 503 No\r\n\r\n", False), (b"", False), (b"200\r\n", False)],
)
async def test_only_a_200_counts(answer, expected):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await is_open(server.sockets[0].getsockname()) is expected


async def test_a_closed_door_is_not_open():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()

    assert await is_open(address) is False
