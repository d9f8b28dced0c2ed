"""The end of a request as the queue sees it, when the front door has to give it up."""

from headrace.shared import subjects


async def test_a_log_that_cannot_be_followed_fails_the_call_and_stops_the_worker(door):
    async def spoil(run):
        await run.take()
        await run.say("a")
        await run.bus.publish(subjects.run(run.request.ing, run.rid, "tok"), b"\xc1junk")

    door.backend.plan = spoil

    answer = await door.chat()
    await door.front.cleanups.settle()

    run = door.backend.runs[0]
    cancel = await door.registry_bus.last(subjects.RUN, subjects.run(run.request.ing, run.rid, "cancel"))
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert cancel is not None


async def test_a_request_that_ended_is_not_cancelled_afterwards(door):
    await door.chat()
    await door.front.cleanups.settle()

    assert (await door.backend.runs[0].log()).cancel is None
