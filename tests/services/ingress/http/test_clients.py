"""The unmodified official clients against the front door."""

import asyncio

import anthropic
import openai
import pytest

from headrace.shared.errors import Code, Failure

USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(door):
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def strict(door):
    async with openai.AsyncOpenAI(
        base_url=f"{door.url}/v1", api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_chat(client):
    reply = await client.chat.completions.create(model="scripted", messages=USER)

    assert reply.id.startswith("chatcmpl-")
    assert (reply.object, reply.choices[0].message.role, reply.choices[0].message.content) == (
        "chat.completion",
        "assistant",
        "Hello",
    )
    assert (reply.choices[0].finish_reason, reply.choices[0].stop_reason) == ("stop", None)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 3, 10)
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    assert reply._request_id.startswith("req_")


async def test_strict_validation_passes(strict):
    reply = await strict.chat.completions.create(model="scripted", messages=USER)
    stream = await strict.chat.completions.create(
        model="scripted", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "tool_calls" not in reply.choices[0].message.model_fields_set
    assert chunks[-1].usage == reply.usage
    assert (await strict.models.list()).data[0].id == "scripted"


async def test_the_stream_helper(client):
    async with client.chat.completions.stream(
        model="scripted", messages=USER, stream_options={"include_usage": True}
    ) as stream:
        final = await stream.get_final_completion()

    assert (final.choices[0].message.role, final.choices[0].message.content) == ("assistant", "Hello")
    assert final.usage.total_tokens == 10
    assert final.system_fingerprint.startswith("fp_")


async def test_completions_and_the_stop_reason(client, door, say):
    door.backend.plan = say("Hel", cause="stop", match="lo w")

    reply = await client.completions.create(model="scripted", prompt="x")
    stream = await client.completions.create(model="scripted", prompt="x", stream=True)

    assert (reply.object, reply.choices[0].text, reply.choices[0].stop_reason) == ("text_completion", "Hel", "lo w")
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hel"
    assert door.backend.runs[0].request.max_new == 16


async def test_extra_fields_are_named_in_a_header(client):
    raw = await client.chat.completions.with_raw_response.create(
        model="scripted", messages=USER, extra_body={"zzz": 1, "bad name\n": 2}
    )

    assert raw.headers["x-ignored-params"] == "zzz"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.CONTEXT_LENGTH, openai.BadRequestError),
        (Code.OVERLOADED, openai.InternalServerError),
        (Code.TIMEOUT, openai.InternalServerError),
        (Code.WORKER_CRASHED, openai.InternalServerError),
    ],
)
async def test_failures_are_the_clients_exceptions(client, door, code, error):
    async def play(run):
        await run.take()
        await run.fail(Failure(code=code, message="no"))

    door.backend.plan = play

    with pytest.raises(error):
        await client.chat.completions.create(model="scripted", messages=USER)


async def test_a_failure_inside_a_stream_raises(client, door):
    async def play(run):
        await run.take()
        await run.say("a")
        await run.fail(Failure(code=Code.INTERNAL, message="no"))

    door.backend.plan = play
    stream = await client.chat.completions.create(model="scripted", messages=USER, stream=True)

    with pytest.raises(openai.APIError) as caught:
        [chunk async for chunk in stream]

    assert (caught.value.code, caught.value.type) == ("internal_error", "server_error")


async def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-9", messages=USER)

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_a_model_with_a_slash(client):
    reply = await client.chat.completions.create(model="org/name", messages=USER)

    assert (await client.models.retrieve("org/name")).id == reply.model == "org/name"


async def test_retries_bring_a_request_through_once_a_worker_is_there(open_door):
    door = await open_door("ingress.absence_grace_s=0.01")
    await door.remove("decode")
    await asyncio.sleep(0.02)
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="any", max_retries=3) as client:
        waiting = asyncio.create_task(client.chat.completions.create(model="scripted", messages=USER))
        await asyncio.sleep(0.2)
        await door.report("decode")

        reply = await waiting

    assert reply.choices[0].message.content == "Hello"


async def test_both_clients_list_and_find_models(door, client):
    async with anthropic.AsyncAnthropic(
        base_url=door.url, api_key="any", max_retries=0, _strict_response_validation=True
    ) as other:
        ours = [model.id async for model in client.models.list()]
        theirs = [model.id async for model in other.models.list(limit=1)]
        assert ours == theirs == ["scripted", "org/name"]
        assert (await other.models.retrieve("org/name")).id == "org/name"
        with pytest.raises(anthropic.NotFoundError) as caught:
            await other.models.retrieve("nope")
        assert caught.value.type == "not_found_error"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.models.retrieve("nope")
    assert missing.value.code == "model_not_found"
