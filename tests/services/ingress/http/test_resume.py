"""A stream joined again by its request id: the frames that are left, byte for byte."""

import asyncio

import pytest

from headrace.shared.errors import Code, Failure
from headrace.shared.ids import new_rid

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


def frames(body):
    """All frames of a raw stream, comments left out."""
    return [frame + b"\n\n" for frame in body.split(b"\n\n") if frame.startswith(b"data:")]


async def resumed(door, rid, offset):
    return await door.get(f"/headrace/requests/{rid}/stream?offset={offset}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_every_offset_gives_exactly_the_rest_of_the_stream(door, path):
    prompt = (
        {"prompt": "hi"} if path.endswith("/completions") and "chat" not in path else {"messages": CHAT["messages"]}
    )
    body = {"model": "scripted", "stream": True, "stream_options": {"include_usage": True}, **prompt}
    original = await door.post(path, body)
    rid = original.headers["x-headrace-request"]
    whole = frames(original.raw)
    assert len(whole) > 4

    for offset in range(len(whole)):
        rest = await resumed(door, rid, offset)
        assert rest.status == 200
        assert frames(rest.raw) == whole[offset:]
        assert rest.headers["x-headrace-request"] == rid


async def test_a_plain_request_resumes_as_a_stream(door):
    original = await door.post("/v1/chat/completions", CHAT)
    rest = await resumed(door, original.headers["x-headrace-request"], 0)

    assert rest.headers["content-type"].startswith("text/event-stream")
    assert b'"content":"Hel"' in rest.raw
    assert rest.raw.endswith(b"data: [DONE]\n\n")


async def test_a_running_stream_is_followed_to_its_end(door):
    go_on = asyncio.Event()

    async def play(run):
        await run.take()
        await run.say("one ")
        await go_on.wait()
        await run.say("two")
        await run.end()

    door.backend.plan = play
    first = asyncio.create_task(door.post("/v1/chat/completions", CHAT | {"stream": True}))
    await door.backend.arrived.wait()
    rid = door.backend.runs[0].rid
    second = asyncio.create_task(resumed(door, rid, 0))
    await asyncio.sleep(0)
    go_on.set()

    assert frames((await second).raw) == frames((await first).raw)


async def test_a_failed_request_resumes_to_its_error_frame(door):
    async def play(run):
        await run.take()
        await run.say("one ")
        await run.fail(Failure(code=Code.INTERNAL, message="the model failed on this request"))

    door.backend.plan = play
    original = await door.post("/v1/chat/completions", CHAT | {"stream": True})
    rest = await resumed(door, original.headers["x-headrace-request"], 1)

    assert frames(rest.raw) == frames(original.raw)[1:]
    assert b'"error"' in rest.raw


async def test_leaving_a_resumed_stream_cancels_nothing(door):
    go_on = asyncio.Event()

    async def play(run):
        await run.take()
        await run.say("one ")
        await go_on.wait()
        await run.end()

    door.backend.plan = play
    first = asyncio.create_task(door.post("/v1/chat/completions", CHAT | {"stream": True}))
    await door.backend.arrived.wait()
    leaving = asyncio.create_task(resumed(door, door.backend.runs[0].rid, 0))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    go_on.set()

    assert (await first).raw.endswith(b"data: [DONE]\n\n")
    assert (await door.backend.runs[0].log()).cancel is None


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "9999999999", "²"])
async def test_an_offset_that_is_no_number_is_refused(door, offset):
    original = await door.post("/v1/chat/completions", CHAT)
    answer = await resumed(door, original.headers["x-headrace-request"], offset)

    assert answer.status == 400
    assert answer.error["param"] == "offset"


@pytest.mark.parametrize("rid", [new_rid(), "nonsense", "*"])
async def test_an_unknown_request_is_not_found(door, rid):
    assert (await resumed(door, rid, 0)).status == 404
