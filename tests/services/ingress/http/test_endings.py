"""Every request ends once: disconnects, deadlines, cancels, refusals. Nothing stays behind."""

import asyncio

import aiohttp
import pytest
from prometheus_client import REGISTRY

from headrace.shared import runlog, subjects
from headrace.shared.errors import BusUnavailableError, QueueFullError

CHAT = "/v1/chat/completions"


async def hold(run):
    """A worker that takes the request, says one word and then nothing."""
    await run.take()
    await run.say("a")


async def ignore(run):
    """Nobody takes the request."""


async def until(condition):
    async with asyncio.timeout(5):
        while True:
            value = await condition()
            if value:
                return value
            await asyncio.sleep(0.005)


def check_empty(door):
    assert door.front.gate.num_active == 0
    assert door.front.inbox._feeds == {}
    for name, labels in [
        ("headrace_requests_active", {"stage": "ingress"}),
        ("headrace_subscriptions", {}),
        ("headrace_map_size", {"name": "feeds"}),
    ]:
        assert REGISTRY.get_sample_value(name, labels) == 0


async def log_of(door, index=0):
    run = door.backend.runs[index]
    return await runlog.read_log(door.registry_bus, run.request.ing, run.rid)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_a_running_request(door, chat, stream):
    door.backend.plan = hold
    calling = asyncio.create_task(door.post(CHAT, chat(stream=stream)))
    await door.backend.arrived.wait()
    await until(lambda: taken(door))
    calling.cancel()

    cancel = await until(lambda: cancel_of(door))

    assert (cancel.reason, cancel.by) == ("disconnect", "ingress-1")
    await until(lambda: idle(door))
    check_empty(door)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_a_queued_request(door, chat, stream):
    door.backend.plan = ignore
    calling = asyncio.create_task(door.post(CHAT, chat(stream=stream)))
    await door.backend.arrived.wait()
    rid = door.backend.runs[0].rid
    await door.registry_bus.publish(subjects.route("int", rid), b"x")
    calling.cancel()

    fin = await until(lambda: fin_of(door))

    assert fin.failure.code == "cancelled"
    await until(lambda: idle(door))
    assert await door.registry_bus.last(subjects.RTEQ, "work.>") is None
    check_empty(door)


async def test_clients_that_leave_at_any_moment_leave_nothing(door, chat):
    door.backend.plan = hold
    text = "x" * 20_000

    async def churn(delay_s):
        body = chat(stream=delay_s > 0.01, messages=[{"role": "user", "content": text}])
        timeout = aiohttp.ClientTimeout(total=delay_s)
        with pytest.raises((TimeoutError, aiohttp.ClientError)):
            await door.post(CHAT, body, timeout=timeout)

    for _ in range(10):
        await asyncio.gather(*(churn(0.001 + index * 0.001) for index in range(20)))

    await until(lambda: idle(door))
    await door.front.cleanups.settle()
    await until(lambda: nothing_queued(door))
    for index, run in enumerate(door.backend.runs):
        assert (await log_of(door, index)).cancel is not None, run.rid
    check_empty(door)


async def test_a_client_that_does_not_read_is_cut(open_door, chat):
    door = await open_door("ingress.write_timeout_s=0.2")

    async def flood(run):
        await run.take()
        for _ in range(400):
            await run.say("x" * 60_000)

    door.backend.plan = flood
    before = REGISTRY.get_sample_value("headrace_sse_write_timeouts_total")
    async with door.session.post(door.url + CHAT, json=chat(stream=True)) as response:
        await response.content.read(10)
        cancel = await until(lambda: cancel_of(door))
        response.close()

    assert cancel.reason == "disconnect"
    assert REGISTRY.get_sample_value("headrace_sse_write_timeouts_total") == before + 1
    await until(lambda: idle(door))
    check_empty(door)


async def test_a_request_nobody_takes_is_refused_in_time_and_removed(open_door):
    door = await open_door("timeouts.queue_s=0.1")
    door.backend.plan = ignore

    answer = await door.chat()

    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await log_of(door)).fin.failure.code == "queue_timeout"
    check_empty(door)


async def test_the_queue_deadline_ends_when_a_worker_takes_the_request(open_door):
    door = await open_door("timeouts.queue_s=0.1", "ingress.silence_s=0.05")

    async def slow(run):
        await run.take()
        await asyncio.sleep(0.3)
        await run.say("a")
        await run.end()

    door.backend.plan = slow

    assert (await door.chat()).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_first_token_that_does_not_come_is_refused_and_cancelled(open_door, stream):
    door = await open_door("timeouts.first_token_s=0.1")

    async def silent(run):
        await run.take()

    door.backend.plan = silent

    answer = await door.chat(stream=stream)

    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    assert (await log_of(door)).cancel.reason == "timeout"
    check_empty(door)


async def test_the_total_deadline_of_a_plain_answer(open_door):
    door = await open_door("timeouts.total_s=0.1")
    door.backend.plan = hold

    answer = await door.chat()

    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert answer.headers["x-should-retry"] == "false"
    assert (await log_of(door)).cancel.reason == "timeout"
    check_empty(door)


async def test_the_total_deadline_inside_a_stream(open_door):
    door = await open_door("timeouts.total_s=0.1")
    door.backend.plan = hold

    answer = await door.chat(stream=True)

    assert answer.status == 200
    assert answer.frames[-1]["error"]["code"] == "timeout"
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    check_empty(door)


async def test_a_plain_answer_comes_before_its_client_gives_up(door, chat):
    await door.post(CHAT, chat(), headers={"x-stainless-read-timeout": "25"})
    await door.post(CHAT, chat(stream=True), headers={"x-stainless-read-timeout": "25"})
    await door.post(CHAT, chat(), headers={"x-stainless-read-timeout": "NOT_GIVEN"})

    assert [run.request.deadlines.total_s for run in door.backend.runs] == [20, 600, 600]


@pytest.mark.parametrize("plan", [hold, ignore])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancel_through_the_api_ends_the_answer(door, chat, plan, stream):
    async def obedient(run):
        await plan(run)
        await until(lambda: cancel_of(door))
        if run.lease is not None:
            await run.fin("cancelled")

    door.backend.plan = obedient
    calling = asyncio.create_task(door.post(CHAT, chat(stream=stream)))
    await door.backend.arrived.wait()
    rid = door.backend.runs[0].rid
    if plan is hold:
        await until(lambda: taken(door))

    cancelled = await door.get(f"/headrace/requests/{rid}/cancel", method="POST")
    again = await door.get(f"/headrace/requests/{rid}/cancel", method="POST")
    answer = await asyncio.wait_for(calling, 2)

    assert (cancelled.status, again.status) == (202, 202)
    error = answer.frames[-1]["error"] if answer.status == 200 else answer.error
    assert error["code"] == "cancelled"
    assert answer.status == (200 if stream and plan is hold else 499)
    assert (await door.get(f"/headrace/requests/{rid}")).json["state"] in {"cancelled", "finished"}
    check_empty(door)


async def test_a_full_queue_refuses_and_keeps_no_trace(door, monkeypatch):
    publish = door.registry_bus.publish

    async def full(subject, data, **kwargs):
        if subject.startswith("work.tok."):
            raise QueueFullError("full")
        return await publish(subject, data, **kwargs)

    monkeypatch.setattr(door.registry_bus, "publish", full)

    answer = await door.chat()

    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    assert await door.registry_bus.last(subjects.RUN, "run.>") is None
    check_empty(door)


async def test_a_log_that_takes_no_request_refuses_and_leaves_no_work(door, monkeypatch):
    publish = door.registry_bus.publish

    async def full(subject, data, **kwargs):
        if subject.endswith(".req"):
            raise QueueFullError("full")
        return await publish(subject, data, **kwargs)

    monkeypatch.setattr(door.registry_bus, "publish", full)
    door.backend.plan = hold

    answer = await door.chat()

    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    await until(lambda: nothing_queued(door))
    check_empty(door)


async def test_work_and_log_are_stored_in_one_exchange_with_the_queue(door, monkeypatch):
    publish = door.registry_bus.publish
    steps = []

    async def noted(subject, data, **kwargs):
        kind = subject.split(".")[0]
        steps.append(f"ask {kind}")
        seq = await publish(subject, data, **kwargs)
        await asyncio.sleep(0)
        steps.append("answer")
        return seq

    monkeypatch.setattr(door.registry_bus, "publish", noted)

    assert (await door.chat()).status == 200

    assert steps == ["ask run", "ask work", "answer", "answer"]


async def test_a_queue_that_does_not_answer_refuses(door, monkeypatch):
    async def away(*_args, **_kwargs):
        raise BusUnavailableError("no answer")

    monkeypatch.setattr(door.registry_bus, "publish", away)

    answer = await door.chat()

    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    check_empty(door)


async def test_no_more_requests_than_allowed(open_door, chat):
    door = await open_door("limits.max_concurrent=1")
    door.backend.plan = hold
    first = asyncio.create_task(door.post(CHAT, chat()))
    await door.backend.arrived.wait()

    refused = await door.chat()

    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    first.cancel()
    await until(lambda: idle(door))


async def taken(door):
    return door.backend.runs[0].num_ids


async def idle(door):
    return door.front.gate.num_active == 0


async def nothing_queued(door):
    return await door.registry_bus.last(subjects.TOKQ, "work.>") is None


async def cancel_of(door):
    return (await log_of(door)).cancel


async def fin_of(door):
    return (await log_of(door)).fin
