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
