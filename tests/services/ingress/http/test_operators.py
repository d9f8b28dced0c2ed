"""What operators see and order: workers, scale, drain, requests, health, metrics, draining."""

import asyncio

import msgspec
import pytest

from headrace.shared import subjects
from headrace.shared.errors import Code, Failure
from headrace.shared.ids import new_rid
from headrace.shared.messages import encode
from headrace.shared.reports import ControlReply, DrainRequest, ScaleRequest, State


async def test_workers_are_listed_as_they_report(door):
    await door.report("decode", pid=7, queued_tokens=30, active=2, metrics="http://127.0.0.1:1/metrics")

    (decode,) = [worker for worker in (await door.get("/headrace/workers")).json if worker["stage"] == "decode"]

    assert decode == {
        "stage": "decode",
        "wid": "decode-1",
        "pid": 7,
        "state": "ready",
        "queue": 30,
        "active": 2,
        "model": "scripted,org/name",
        "revision": "rev-scripted,0123456789ab",
        "metrics": "http://127.0.0.1:1/metrics",
    }


async def test_scale_and_drain_reach_the_supervisor(door):
    orders = []

    async def obey(data):
        orders.append(data)
        return encode(ControlReply(status="ok", message="as you wish"))

    await door.registry_bus.respond(subjects.CONTROL_SCALE, obey)
    await door.registry_bus.respond(subjects.CONTROL_DRAIN, obey)

    scaled = await door.post("/headrace/scale", {"stages": {"decode": 2, "ingress": 1.0}})
    drained = await door.post("/headrace/drain", {"wid": "decode-1"})

    assert scaled.json == drained.json == {"status": "ok", "message": "as you wish"}
    assert msgspec.msgpack.decode(orders[0], type=ScaleRequest).stages == {"decode": 2, "ingress": 1}
    assert msgspec.msgpack.decode(orders[1], type=DrainRequest).wid == "decode-1"


async def test_an_order_the_supervisor_refuses_says_why(door):
    async def refuse(_data):
        return encode(ControlReply(status="refused", message="no stage 'oven'"))

    await door.registry_bus.respond(subjects.CONTROL_SCALE, refuse)

    answer = await door.post("/headrace/scale", {"stages": {"oven": 2}})

    assert (answer.status, answer.error["message"]) == (409, "no stage 'oven'")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("scale", {}, "stages"),
        ("scale", {"stages": {}}, "stages"),
        ("scale", {"stages": {"decode": -1}}, "stages.decode"),
        ("scale", {"stages": {"decode": "2"}}, "stages.decode"),
        ("scale", {"stages": ["decode"]}, "stages"),
        ("drain", {}, "wid"),
        ("drain", {"wid": "a.b"}, "wid"),
        ("drain", {"wid": 1}, "wid"),
    ],
)
async def test_bad_orders_are_refused_by_name(door, path, body, param):
    answer = await door.post(f"/headrace/{path}", body)

    assert (answer.status, answer.error["param"]) == (400, param)


async def test_without_a_supervisor_orders_say_so(door):
    answer = await door.post("/headrace/scale", {"stages": {"decode": 2}})

    assert answer.status == 503
    assert "no supervisor" in answer.error["message"]


async def test_a_finished_request_can_be_looked_up(door):
    rid = (await door.chat()).headers["x-headrace-request"]

    status = (await door.get(f"/headrace/requests/{rid}")).json

    created = status.pop("created")
    assert isinstance(created, int)
    assert status == {
        "id": rid,
        "state": "finished",
        "model": "scripted",
        "attempts": 1,
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cached_tokens": 4},
        "finish_reason": "stop",
        "error": None,
    }


async def test_a_failed_request_tells_its_error_without_internals(door):
    async def play(run):
        await run.take()
        await run.fail(Failure(code=Code.INTERNAL, message="hunter2"))

    door.backend.plan = play
    rid = (await door.chat()).headers["x-headrace-request"]

    answer = await door.get(f"/headrace/requests/{rid}")

    assert (answer.json["state"], answer.json["error"]["code"]) == ("failed", "internal_error")
    assert b"hunter2" not in answer.raw


async def test_states_before_the_end(door, chat):
    steps: asyncio.Queue[str] = asyncio.Queue()
    taken = asyncio.Event()

    async def play(run):
        await steps.get()
        await run.take()
        taken.set()
        await steps.get()
        await run.end()

    async def state():
        return (await door.get(f"/headrace/requests/{door.backend.runs[0].rid}")).json["state"]

    door.backend.plan = play
    calling = asyncio.create_task(door.post("/v1/chat/completions", chat()))
    await door.backend.arrived.wait()
    queued = await state()
    steps.put_nowait("take")
    await asyncio.wait_for(taken.wait(), 5)
    running = await state()
    steps.put_nowait("end")
    await calling

    assert (queued, running, await state()) == ("queued", "running", "finished")


@pytest.mark.parametrize("rid", [new_rid(), "nope", "x" * 200, "a%2Fb", "*"])
async def test_unknown_requests_are_404(door, rid):
    assert (await door.get(f"/headrace/requests/{rid}")).status == 404
    assert (await door.get(f"/headrace/requests/{rid}/cancel", method="POST")).status == 404


async def test_cancelling_a_finished_request_changes_nothing(door):
    rid = (await door.chat()).headers["x-headrace-request"]

    answer = await door.get(f"/headrace/requests/{rid}/cancel", method="POST")

    assert (answer.status, answer.json) == (202, {"id": rid, "state": "finished"})
    assert (await door.backend.runs[0].log()).cancel is None


async def test_readiness_follows_the_registry(door):
    ready = await door.get("/health/ready")
    await door.report("decode", state=State.STARTING)
    starting = await door.get("/health/ready")
    live = await door.get("/health/live")

    assert (ready.status, ready.json) == (200, {"status": "ready", "models": ["scripted", "org/name"]})
    assert (starting.status, starting.json["reason"]) == (503, "no decode worker is ready")
    assert (live.status, (await door.get("/health")).status) == (200, 503)


async def test_metrics_count_answers_by_route_and_status(door):
    await door.chat()
    await door.get("/v1/models/" + "x" * 50)

    text = (await door.get("/metrics")).raw.decode()

    assert 'headrace_http_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert 'headrace_http_requests_total{route="/v1/models/{id}",status="404"}' in text
    assert 'headrace_requests_total{class="int",outcome="ok",stage="ingress"}' in text
    assert "headrace_ttft_seconds_count" in text
    assert "xxx" not in text


async def test_without_a_needed_stage_requests_are_refused_after_the_grace_period(open_door):
    door = await open_door("ingress.absence_grace_s=0.2")
    await door.remove("decode")

    within = await door.chat()
    await asyncio.sleep(0.25)
    after = await door.chat()

    assert within.status == 200
    assert (after.status, after.error["code"]) == (503, "overloaded")
    assert int(after.headers["retry-after"]) >= 1


async def test_while_draining_streams_finish_and_new_requests_are_refused(door, chat):
    go_on = asyncio.Event()

    async def play(run):
        await run.take()
        await run.say("a")
        await go_on.wait()
        await run.say("b")
        await run.end()

    door.backend.plan = play
    async with door.session.post(door.url + "/v1/chat/completions", json=chat(stream=True)) as response:
        await response.content.readuntil(b'"content":"a"')
        door.front.draining.set()
        refused = await door.chat()
        readiness = await door.get("/health/ready")
        go_on.set()
        rest = await response.read()

    assert (refused.status, refused.headers["Connection"], refused.headers["retry-after"]) == (503, "close", "1")
    assert readiness.status == 503
    assert b'"content":"b"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(door.front.gate.idle(), 1)
