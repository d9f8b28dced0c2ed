"""What is noted of a stream, and in what order requests are sent."""

import asyncio
import json

import pytest
from aiohttp import web
from load import Reply, closed_loop, one_by_one_behind
from workload import Ask


def text(piece):
    return {"choices": [{"text": piece}]}


def test_times_are_those_of_chunks_with_text():
    reply = Reply(started_s=1.0)
    for now, piece in ((1.1, ""), (1.5, "a"), (1.6, "b"), (1.9, "c"), (2.0, "")):
        reply.take(text(piece), now)
    reply.take({"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens": 7}}, 2.1)
    reply.end(2.2)

    assert (reply.ttft_s, reply.tpot_s, reply.e2e_s) == pytest.approx((0.5, 0.1, 1.2))
    assert reply.gaps_s == pytest.approx([0.1, 0.3])
    assert (reply.num_tokens, reply.num_prompt_tokens, reply.num_cached_tokens) == (5, 7, 0)


def test_without_usage_chunks_are_counted():
    reply = Reply(0.0)
    reply.take(text("a"), 0.1)
    reply.take(text("b"), 0.2)
    reply.end(0.3)

    assert (reply.num_tokens, reply.error) == (2, "")


def test_cached_tokens_come_from_usage():
    usage = {"completion_tokens": 1, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}
    reply = Reply(0.0)
    reply.take({"usage": usage}, 0.1)

    assert reply.num_cached_tokens == 8


def test_an_error_in_the_stream_and_an_empty_answer_are_errors():
    failed, empty = Reply(0.0), Reply(0.0)
    failed.take({"error": {"code": "overloaded"}}, 0.1)
    for reply in (failed, empty):
        reply.end(0.2)

    assert "overloaded" in failed.error
    assert empty.error == "no tokens"


class Server:
    """Answers two tokens; notes what it is asked, and how much at once."""

    def __init__(self):
        self.bodies = []
        self.num_now = self.most = 0
        self.gate = asyncio.Event()

    async def answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        if body["prompt"] == "refuse":
            self.num_now -= 1
            return web.Response(status=503, text="later")
        response = web.StreamResponse()
        await response.prepare(request)
        if body["prompt"] == "long":
            await self.gate.wait()
        usage = {"usage": {"completion_tokens": 2, "prompt_tokens": 1}}
        for event in (text("a"), text("b"), usage):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        self.num_now -= 1
        if sum(seen["prompt"] == "short" for seen in self.bodies) == 2:
            self.gate.set()
        return response


@pytest.fixture
async def server():
    return Server()


@pytest.fixture
async def url(server):
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_closed_loop_sends_everything_and_never_more_than_its_clients(server, url):
    load = await closed_loop(url, "m", [Ask(f"{number}", 2) for number in range(9)], clients=3)

    assert [reply.error for reply in load.replies] == [""] * 9
    assert {body["prompt"] for body in server.bodies} == {f"{number}" for number in range(9)}
    assert server.most <= 3


async def test_every_server_is_asked_for_the_same_work(server, url):
    await closed_loop(url, "m", [Ask("one", 2)], clients=1)

    (body,) = server.bodies
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]) == (2, 0, True, True)
    assert body["stream_options"] == {"include_usage": True}


async def test_a_refusal_is_an_error_with_its_status(url):
    load = await closed_loop(url, "m", [Ask("refuse", 2)], clients=1)

    assert load.replies[0].error == "503 later"


async def test_short_requests_go_one_by_one_while_the_long_one_waits(server, url):
    load = await one_by_one_behind(url, "m", [Ask("long", 2)], [Ask("short", 2)] * 5)

    assert [body["prompt"] for body in server.bodies[:3]] == ["long", "short", "short"]
    assert server.most == 2
    assert {reply.error for reply in load.replies} == {""}
    assert len(load.replies) >= 2


async def test_a_failed_long_request_is_an_error_and_the_last_one(url):
    load = await one_by_one_behind(url, "m", [Ask("refuse", 2)] * 2, [Ask("short", 2)])

    assert [reply.error for reply in load.replies] == ["the long request: 503 later"]
