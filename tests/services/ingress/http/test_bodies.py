"""Bodies, routes and headers that are wrong: a JSON error for that call only."""

import asyncio
import gzip

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


def check_error(answer, status):
    assert answer.status == status
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/chat/completions", "/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null{",
        b"\xff",
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"temperature":NaN}',
        b'{"temperature":1e999}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{} trailing",
    ],
)
async def test_a_body_that_is_no_json_is_a_400(door, path, body):
    check_error(await door.post(path, body), 400)


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
async def test_a_body_that_is_no_object_is_a_400(door, body):
    answer = await door.post(CHAT, body)

    check_error(answer, 400)
    assert answer.error["code"] == "invalid_type"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_other_content_types_are_refused(door, chat, content_type):
    check_error(await door.post(CHAT, chat(), headers={"Content-Type": content_type}), 415)


async def test_a_missing_content_type_is_refused(door):
    async with door.session.post(door.url + CHAT, data=b"{}", skip_auto_headers=["Content-Type"]) as response:
        assert response.status == 415


async def test_a_large_body_is_refused_with_the_limit(open_door, chat):
    door = await open_door("limits.max_body_bytes=1000")

    announced = await door.post(CHAT, chat(x="y" * 2000))

    check_error(announced, 413)
    assert "1000" in announced.error["message"]
    assert (await door.chat()).status == 200


async def test_a_large_body_without_a_length_is_refused(open_door):
    door = await open_door("limits.max_body_bytes=1000")

    async def chunks():
        for _ in range(10):
            yield b"x" * 500

    async with door.session.post(door.url + CHAT, data=chunks(), headers=JSON) as response:
        assert response.status == 413
        assert response.content_type == "application/json"


async def test_a_large_body_is_refused_before_it_is_sent(open_door):
    """`Expect: 100-continue`: the answer is the refusal, not an invitation."""
    door = await open_door("limits.max_body_bytes=1000")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n"

    lines = await first_lines(door, head + "Expect: 100-continue\r\n\r\n")
    invited = await first_lines(door, head.replace("5000", "500") + "Expect: 100-continue\r\n\r\n")

    assert lines.startswith("HTTP/1.1 413 ")
    assert invited.startswith("HTTP/1.1 100 ")


async def test_a_compressed_body_is_refused_unopened(door, chat):
    bomb = gzip.compress(msgspec.json.encode(chat(x="y" * 5_000_000)))

    for body in (bomb, b"no gzip at all"):
        check_error(await door.post(CHAT, body, headers={"Content-Encoding": "gzip"}), 415)
    assert (await door.chat()).status == 200


async def test_a_megabyte_body_is_served(door, chat):
    text = "é" * 500_000

    answer = await door.post(CHAT, chat(messages=[{"role": "user", "content": text}]))

    assert answer.status == 200
    assert door.backend.runs[0].accepted.prompt.turns[0].text == text


async def test_more_ids_than_a_work_item_holds_are_refused(open_door):
    door = await open_door("limits.max_body_bytes=8000000")

    check_error(await door.post("/v1/completions", {"model": "scripted", "prompt": [1] * 1_100_000}), 413)
    assert door.front.inbox._feeds == {}


async def test_a_body_that_dribbles_is_a_408(open_door):
    door = await open_door("ingress.body_timeout_s=0.1")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"

    assert (await first_lines(door, head)).startswith("HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/", 404),
        ("GET", CHAT, 404),
        ("GET", CHAT + "/chatcmpl-x", 404),
        ("DELETE", "/v1/models/scripted", 405),
        ("PUT", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/headrace/scale", 405),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/" + "x" * 5000, 404),
    ],
)
async def test_wrong_urls_and_methods(door, method, path, status):
    answer = await door.get(path, method=method)

    check_error(answer, status)
    assert ("Allow" in answer.headers) == (status == 405 or path == CHAT)
    assert len(answer.error["message"]) < 300


async def test_wrong_urls_answer_in_the_callers_dialect(door):
    messages = await door.get("/v1/messages", method="POST")
    models = await door.get("/v1/models/nope", headers={"anthropic-version": "2026-10-21"})

    for answer in (messages, models):
        assert answer.status == 404
        assert answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "not_found_error"
        assert answer.json["request_id"] == answer.headers["request-id"]


async def test_routes_work_without_the_version_prefix(door, chat):
    assert (await door.post("/chat/completions", chat())).status == 200
    assert (await door.post("/completions", {"model": "scripted", "prompt": "x"})).status == 200
    assert (await door.get("/models")).json["data"][0]["id"] == "scripted"


async def test_ids_are_ours_whatever_the_client_sends(door, chat):
    answer = await door.post(CHAT, chat(), headers={"X-Request-Id": "mine" * 1000})
    refused = await door.post(CHAT, {"model": "scripted"})

    rid = answer.headers["x-headrace-request"]
    assert answer.headers["x-request-id"] == f"req_{rid}"
    assert answer.json["id"] == f"chatcmpl-{rid}"
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert refused.headers["x-headrace-request"] != rid
    assert "x-headrace-request" not in (await door.get("/v1/models")).headers


async def test_a_callers_request_id_only_ends_the_reply_id(door):
    answer = await door.chat(request_id="abc-1")

    assert answer.json["id"] == f"chatcmpl-{answer.headers['x-headrace-request']}-abc-1"
    assert door.backend.runs[0].rid == answer.headers["x-headrace-request"]


@pytest.mark.parametrize("stream", [True, False])
async def test_validation_fails_alike_with_and_without_stream(door, stream):
    answer = await door.chat(stream=stream, temperature=9)

    check_error(answer, 400)
    assert (answer.error["code"], answer.error["param"]) == ("decimal_above_max_value", "temperature")


async def test_absent_seeds_are_drawn_and_given_ones_kept(door):
    await door.chat()
    await door.chat()
    await door.chat(seed=5)

    first, second, third = (run.request.sampling.seed for run in door.backend.runs)
    assert first != second
    assert (0 <= first < 2**63, third) == (True, 5)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "messages",
        "model",
        "stream",
        "max_tokens",
        "stop",
        "logit_bias",
        "tools",
        "x_script",
        "metadata",
        "stream_options",
    ]
)


@given(fields=st.dictionaries(names, json_values, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_json_object_is_ever_a_server_error(parse_any, fields):
    parse_any({"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]} | fields)


async def first_lines(door, request):
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
    writer.close()
    return answer.decode()
