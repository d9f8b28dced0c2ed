"""Workers as processes: started, replaced, scaled, drained and stopped in order."""

import asyncio
import os
import signal

import pytest

from headrace.shared.errors import ConfigError
from headrace.up.child import Child
from headrace.up.fleet import Fleet

STAYS = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True: signal.pause()
"""
REFUSES = "import sys; print('headrace: no such model', file=sys.stderr); sys.exit(78)"


async def test_a_dead_worker_is_replaced_under_a_new_id(yard, fleet):
    fleet.scale({"decode": 1})
    await yard.all_up(1)
    os.kill(yard.started[0].pid, signal.SIGKILL)
    await yard.all_up(2)

    assert [(child.wid, code, told) for child, code, told in yard.exits] == [
        (yard.started[0].wid, -signal.SIGKILL, False)
    ]
    assert yard.started[1].wid != yard.started[0].wid
    assert fleet.wanted["decode"] == 1


async def test_a_worker_that_keeps_dying_is_started_less_and_less_often(yard, fleet):
    yard.programs["decode"] = "raise SystemExit(3)"
    loop = asyncio.get_running_loop()
    before = loop.time()
    fleet.scale({"decode": 1})
    await yard.until(lambda: len(yard.exits) == 3)

    assert loop.time() - before >= 0.05 + 0.1
    assert {code for _, code, _ in yard.exits} == {3}


async def test_scaling_down_drains_the_newest_and_does_not_replace_it(yard, fleet):
    fleet.scale({"decode": 1})
    await yard.all_up(1)
    fleet.scale({"decode": 3})
    await yard.all_up(3)
    fleet.scale({"decode": 1})
    await yard.until(lambda: len(yard.exits) == 2)

    assert {child.wid for child, _, _ in yard.exits} == {child.wid for child in yard.started[1:]}
    assert all(code == 0 and told for _, code, told in yard.exits)
    assert [child.wid for child in fleet.children] == [yard.started[0].wid]
    assert len(yard.started) == 3


async def test_scaling_to_nothing_and_back(yard, fleet):
    fleet.scale({"prefill": 1})
    await yard.all_up(1)
    fleet.scale({"prefill": 0})
    await yard.until(lambda: len(yard.exits) == 1)
    fleet.scale({"prefill": 1})
    await yard.all_up(2)

    assert fleet.wanted["prefill"] == 1


async def test_a_drained_worker_is_not_replaced_and_one_less_is_wanted(yard, fleet):
    fleet.scale({"decode": 2})
    await yard.all_up(2)
    fleet.drain(yard.started[0].wid)
    await yard.until(lambda: len(yard.exits) == 1)

    assert yard.exits[0][0].last_line == "drained"
    assert fleet.wanted["decode"] == 1
    assert [child.wid for child in fleet.children] == [yard.started[1].wid]


@pytest.mark.parametrize(
    ("counts", "words"),
    [({"decoder": 1}, "unknown stage 'decoder'"), ({"decode": -1}, "decode=-1"), ({"ingress": 0}, "the last ingress")],
)
async def test_a_scale_order_that_cannot_be_meant_changes_nothing(fleet, counts, words):
    with pytest.raises(ConfigError, match=words):
        fleet.scale({"prefill": 1, **counts})

    assert sum(fleet.wanted.values()) == 0


async def test_unknown_workers_and_the_last_ingress_are_not_drained(yard, fleet):
    fleet.scale({"ingress": 1})
    await yard.all_up(1)

    with pytest.raises(ConfigError, match="no worker 'decode-1'"):
        fleet.drain("decode-1")
    with pytest.raises(ConfigError, match="last ingress"):
        fleet.drain(yard.started[0].wid)


async def test_a_worker_that_does_not_drain_in_time_is_killed(yard):
    yard.programs["decode"] = STAYS
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(group, yard.launch, yard.note_exit, backoff_s=1, drain_s=0.1)
        fleet.scale({"decode": 1})
        await yard.all_up(1)
        await fleet.stop(lambda: False)

    assert [code for _, code, _ in yard.exits] == [-signal.SIGKILL]


async def test_a_hurried_stop_waits_for_nobody(yard, fleet):
    yard.programs["decode"] = yard.programs["ingress"] = STAYS
    fleet.scale({"decode": 1, "ingress": 1})
    await yard.all_up(2)
    async with asyncio.timeout(3):
        await fleet.stop(lambda: True)

    assert {code for _, code, _ in yard.exits} == {-signal.SIGKILL}


async def test_stopping_goes_from_the_front_door_to_the_source_of_tokens(yard, fleet):
    fleet.scale(dict.fromkeys(("decode", "prefill", "router", "tokenize", "ingress"), 1))
    await yard.all_up(5)
    await fleet.stop(lambda: False)

    order = [child.stage for child, _, _ in yard.exits]
    assert order[0] == "ingress"
    assert order[-1] == "decode"
    assert fleet.children == []


async def test_a_worker_in_its_pause_is_given_up_at_once(yard):
    yard.programs["decode"] = "raise SystemExit(3)"
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(group, yard.launch, yard.note_exit, backoff_s=60, drain_s=60)
        fleet.scale({"decode": 1})
        await yard.until(lambda: len(yard.exits) == 1)
        async with asyncio.timeout(3):
            await fleet.stop(lambda: False)

    assert len(yard.started) == 1


async def test_a_machine_without_processes_to_give_is_asked_again(yard, fleet):
    refusals = iter([OSError("no more processes")])
    launch = yard.launch

    async def reluctant(stage: str) -> Child:
        for refusal in refusals:
            raise refusal
        return await launch(stage)

    async with asyncio.TaskGroup() as group:
        fleet = Fleet(group, reluctant, yard.note_exit, backoff_s=0.01, drain_s=5)
        fleet.scale({"decode": 1})
        await yard.all_up(1)
        await fleet.stop(lambda: False)


async def test_the_last_line_of_a_worker_is_kept(yard, fleet):
    yard.programs["decode"] = REFUSES
    fleet.scale({"decode": 1})
    await yard.until(lambda: len(yard.exits) >= 1)
    child, code, _ = yard.exits[0]

    assert (code, child.last_line) == (78, "headrace: no such model")
