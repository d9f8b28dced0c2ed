"""Bytes that are no HTTP: answered like everything else, told to the log as what they are, quoted nowhere."""

import asyncio

import msgspec
import pytest
import structlog

SECRET = b"ZEBRA-4711"


async def send(door, data):
    """Write raw bytes; returns the head lines and the body of the answer."""
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


MALFORMED = {
    "no http": SECRET + b"\r\n\r\n",
    "bare line feeds": b"POST /v1/chat/completions HTTP/1.1\nHost: x\n\n" + SECRET,
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length and chunks": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a long header": b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + SECRET * 10_000 + b"\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 1000 + b"\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_bytes_that_are_no_http_get_our_error_with_ids_and_are_not_quoted(door, data):
    with structlog.testing.capture_logs() as logs:
        head, body = await send(door, data)

    headers = dict(line.lower().split(": ", 1) for line in head[1:])
    assert head[0].split()[1] == "400"
    assert headers["content-type"].startswith("application/json")
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["server"] == "headrace"
    assert set(msgspec.json.decode(body)["error"]) == {"message", "type", "param", "code"}
    assert SECRET not in body
    (entry,) = [entry for entry in logs if entry["event"] == "request_malformed"]
    assert (entry["log_level"], f"req_{entry['request']}") == ("info", headers["x-request-id"])
    assert SECRET.decode() not in str(logs)


async def test_malformed_bytes_close_their_connection_alone(door):
    await send(door, MALFORMED["no http"])

    assert (await door.chat()).status == 200


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half"])
async def test_a_client_that_does_not_say_what_it_wants_is_cut_off(open_door, said):
    door = await open_door("timeouts.connect_s=0.1")
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    started = asyncio.get_running_loop().time()

    writer.write(said)
    async with asyncio.timeout(5):
        rest = await reader.read()

    assert rest == b""
    assert asyncio.get_running_loop().time() - started >= 0.09
    writer.close()


async def test_neither_a_slow_body_nor_an_idle_connection_counts_as_connecting(open_door):
    door = await open_door("timeouts.connect_s=0.1")
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    )

    writer.write(head)
    await asyncio.sleep(0.2)
    writer.write(b"{}")
    first = await reader.readuntil(b"}}")
    await asyncio.sleep(0.2)
    writer.write(head + b"{}")
    second = await reader.readuntil(b"}}")

    assert [answer.split()[1] for answer in (first, second)] == [b"400", b"400"]
    writer.close()
