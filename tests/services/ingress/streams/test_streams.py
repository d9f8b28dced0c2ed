"""Whole streams over a real socket, each one linted."""

import asyncio

import pytest

from headrace.ingress.protocols.openai_encoder import OpenAIEncoder
from headrace.shared import subjects
from headrace.shared.errors import Code, Failure
from headrace.shared.records import EndEvent


@pytest.fixture
def stream(door, lint, chat):
    """Post a streamed chat, lint it, return the answer."""

    async def run(**fields):
        options = fields.get("stream_options", {})
        answer = await door.post("/v1/chat/completions", chat(stream=True, **fields))
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert (
            lint(answer.raw, usage=options.get("include_usage", False), running="continuous_usage_stats" in options)
            == []
        )
        return answer

    return run


def text_of(answer):
    return "".join(c["delta"].get("content", "") for f in answer.frames if "choices" in f for c in f["choices"])


async def test_a_stream_says_what_the_plain_reply_says(door, stream, say):
    door.backend.plan = say("Hel", "lo", " wörld 😀")

    streamed = await stream(stream_options={"include_usage": True})
    plain = await door.chat()

    assert text_of(streamed) == plain.json["choices"][0]["message"]["content"] == "Hello wörld 😀"
    assert streamed.frames[-1]["usage"] == plain.json["usage"]
    assert streamed.frames[0]["id"] == f"chatcmpl-{streamed.headers['x-headrace-request']}"


async def test_response_headers_of_a_stream(stream):
    headers = (await stream()).headers

    assert headers["Cache-Control"] == "no-cache"
    assert headers["X-Accel-Buffering"] == "no"
    assert headers["x-request-id"] == headers["request-id"] == f"req_{headers['x-headrace-request']}"
    assert "Content-Encoding" not in headers


async def test_completions_stream(door, lint):
    answer = await door.post("/v1/completions", {"model": "scripted", "prompt": "x", "stream": True})

    assert lint(answer.raw) == []
    assert "".join(frame["choices"][0]["text"] for frame in answer.frames) == "Hello"
    assert answer.frames[0]["id"].startswith("cmpl-")


async def test_running_usage(stream):
    answer = await stream(stream_options={"include_usage": True, "continuous_usage_stats": True})

    totals = [frame["usage"]["completion_tokens"] for frame in answer.frames]
    assert totals == sorted(totals)
    assert totals[-1] == 3


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\u0085d", "line\r\nline\n\n", '"\\', "\x00\x1f"])
async def test_separators_and_controls_survive(door, stream, say, text):
    door.backend.plan = say(*text)

    assert text_of(await stream()) == text


async def test_records_that_are_republished_twice_or_late_change_nothing(door, stream, say):
    async def echo(record):
        door.front.inbox._feeds[door.backend.runs[0].rid].offer(record)

    again = await door.registry_bus.subscribe("out.>", echo)
    door.backend.plan = say("a", "b", "c")

    assert text_of(await stream()) == "abc"
    await again.close()


async def test_records_that_are_lost_are_read_from_the_log(open_door, lint, chat, say):
    door = await open_door("ingress.silence_s=0.05")
    offer = door.front.inbox._on_record
    await door.front.inbox.stop()
    count = 0

    async def lossy(record):
        nonlocal count
        count += 1
        if count % 2:
            await offer(record)

    leaky = await door.registry_bus.subscribe("out.ingress-1.>", lossy)
    door.backend.plan = say(*"abcdefghij")

    answer = await door.post("/v1/chat/completions", chat(stream=True))

    assert lint(answer.raw) == []
    assert text_of(answer) == "abcdefghij"
    await leaky.close()


async def test_a_restart_of_the_queue_server_loses_nothing(door, stream):
    async def play(run):
        await run.take()
        await run.say("a")
        subscription = door.front.inbox._subscription
        await subscription.close()
        await run.say("b")
        await door.front.inbox.start()
        await door.server.restart()
        await run.say("c")
        await run.end()

    door.backend.plan = play

    assert text_of(await stream()) == "abc"


async def test_the_end_without_tokens_still_opens_and_finishes(stream, door, say):
    door.backend.plan = say()

    frames = (await stream(stream_options={"include_usage": True})).frames

    assert [f["choices"][0]["delta"] for f in frames[:2]] == [{"role": "assistant", "content": "", "refusal": None}, {}]
    assert frames[-1]["usage"]["completion_tokens"] == 1


async def test_text_and_end_in_one_record_lose_no_text(stream, door):
    async def play(run):
        await run.take()
        await run.say("tail", end=EndEvent("length"))
        await run.fin("length")

    door.backend.plan = play

    answer = await stream()

    assert text_of(answer) == "tail"
    assert answer.frames[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_failure_before_the_first_byte_is_a_status(door, chat):
    async def play(run):
        await run.take()
        await run.fail(Failure(code=Code.CONTEXT_LENGTH, message="This model's maximum context length is 8 tokens."))

    door.backend.plan = play

    streamed = await door.post("/v1/chat/completions", chat(stream=True))
    plain = await door.chat()

    assert streamed.status == plain.status == 400
    assert streamed.error == plain.error
    assert (streamed.error["code"], streamed.error["param"]) == ("context_length_exceeded", "messages")
    assert streamed.headers["Content-Type"].startswith("application/json")


async def test_a_failure_after_the_first_byte_is_a_frame(door, stream):
    async def play(run):
        await run.take()
        await run.say("par")
        await run.fail(Failure(code=Code.WORKER_CRASHED, message="secret host name"))

    door.backend.plan = play

    answer = await stream()

    assert answer.status == 200
    assert text_of(answer) == "par"
    assert answer.frames[-1]["error"]["code"] == "internal_error"
    assert b"secret" not in answer.raw


async def test_a_broken_encoder_is_told_and_never_a_silent_end(door, stream, monkeypatch):
    """A bug of ours after the status line: still one terminal event."""
    monkeypatch.setattr(OpenAIEncoder, "fin", lambda *_: 1 / 0)

    answer = await stream()

    assert answer.frames[-1]["error"]["type"] == "server_error"
    assert door.front.gate.num_active == 0


async def test_a_quiet_stream_commits_and_stays_alive(open_door, lint, chat):
    door = await open_door("ingress.commit_after_s=0.05", "ingress.keepalive_s=0.05")

    async def play(run):
        await run.take()
        await asyncio.sleep(0.3)
        await run.say("a")
        await run.end()

    door.backend.plan = play
    answer = await door.post("/v1/chat/completions", chat(stream=True))

    assert lint(answer.raw) == []
    assert answer.raw.startswith(b": keep-alive\n\n")
    assert 3 <= answer.raw.count(b": keep-alive") <= 7


async def test_a_fast_token_is_not_preceded_by_a_comment(stream):
    assert (await stream()).raw.startswith(b"data: ")


async def test_the_client_says_how_patient_it_is(open_door, chat):
    door = await open_door()

    async def play(run):
        await run.take()
        await asyncio.sleep(0.5)
        await run.say("a")
        await run.end()

    door.backend.plan = play
    headers = {"x-stainless-read-timeout": "0.6"}
    answer = await door.post("/v1/chat/completions", chat(stream=True), headers=headers)

    assert 2 <= answer.raw.count(b": keep-alive") <= 3


async def test_an_absurd_impatience_does_not_make_us_write_without_end(door, chat):
    async def play(run):
        await run.take()
        await asyncio.sleep(0.3)
        await run.say("a")
        await run.end()

    door.backend.plan = play
    answer = await door.post("/v1/chat/completions", chat(stream=True), headers={"x-stainless-read-timeout": "1e-9"})

    assert answer.raw.count(b": keep-alive") <= 2


async def test_token_ids_on_request(door, stream):
    plain = await door.chat(return_token_ids=True)
    streamed = await stream(return_token_ids=True)

    assert plain.json["choices"][0]["token_ids"] == [0, 1, 2]
    assert plain.json["prompt_token_ids"] == [5, 6, 7]
    assert [i for frame in streamed.frames for i in frame["choices"][0]["token_ids"]] == [0, 1, 2]
    assert streamed.frames[0]["prompt_token_ids"] == [5, 6, 7]
    assert door.backend.runs[0].request.return_token_ids


async def test_many_streams_at_once_do_not_mix(door, chat):
    async def play(run):
        await run.take()
        mark = run.accepted.prompt.turns[0].text
        for index in range(20):
            await run.say(f"{mark}.{index} ")
        await run.end()

    door.backend.plan = play

    async def one(mark):
        body = chat(stream=True, messages=[{"role": "user", "content": mark}])
        return mark, text_of(await door.post("/v1/chat/completions", body))

    results = await asyncio.gather(*(one(f"m{i}") for i in range(40)))

    assert all(text == "".join(f"{mark}.{i} " for i in range(20)) for mark, text in results)
    assert door.front.inbox._feeds == {}
    assert await door.registry_bus.last(subjects.TOKQ, "work.>") is None
