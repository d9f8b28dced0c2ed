"""Requests through tokenize, router, prefill and decode, with workers that die, drain and come back."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.shared import runlog, subjects
from headrace.shared.errors import Code
from headrace.shared.ids import new_rid
from headrace.shared.messages import Deadlines, Request, Sampling, Script, ScriptStep, Tokenized, encode
from headrace.shared.packing import pack_ids
from headrace.shared.records import CancelRecord, ChoiceEnd, PromptUsage
from headrace.shared.runlog import RunLog

Read = tuple[Callable[[RunLog], str], Callable[[RunLog], list[int]]]
ING = "ingress-test"
ALL = ("router", "tokenize", "prefill", "decode")


def words(num: int, pause_ms: int = 0, **more: Any) -> Script:
    steps = []
    for n in range(num):
        steps.append(ScriptStep(text=f"w{n} "))
        if pause_ms:
            steps.append(ScriptStep(pause_ms=pause_ms))
    return Script(choices=((*steps, ScriptStep(eos=True)),), **more)


def text(num: int) -> str:
    return "".join(f"w{n} " for n in range(num))


async def some_tokens(plant: Any, rid: str) -> None:
    async def has_some() -> bool:
        return bool((await plant.log(rid)).toks)

    await plant.until(has_some)


async def test_a_request_ends_once_with_its_text_and_usage(plant: Any, read: Read) -> None:
    await plant.start(*ALL)
    log = await plant.ended(await plant.submit(words(5)))

    text_of, ids_of = read
    assert text_of(log) == text(5)
    assert len(ids_of(log)) == 6
    assert log.fin.choices == (ChoiceEnd(i=0, n=6, cause="eos"),)
    assert log.fin.failure is None
    assert log.fin.prompt.prompt_tokens == 2
    assert await plant.num_queued() == 0


async def test_many_requests_at_once_all_end_right(plant: Any, read: Read) -> None:
    await plant.start(*ALL, "decode")
    rids = [await plant.submit(words(n % 7 + 1), prompt="x" * (n * 9 + 1)) for n in range(40)]
    logs = [await plant.ended(rid) for rid in rids]

    assert [read[0](log) for log in logs] == [text(n % 7 + 1) for n in range(40)]
    assert len({log.lease.wid for log in logs}) == 2


async def test_without_a_router_workers_help_themselves(plant: Any, read: Read) -> None:
    await plant.start("tokenize", "prefill", "decode")

    assert read[0](await plant.ended(await plant.submit(words(3)))) == text(3)


async def test_without_prefill_requests_go_straight_to_decode(plant: Any, read: Read) -> None:
    await plant.start("router", "tokenize", "decode")

    assert read[0](await plant.ended(await plant.submit(words(3), prompt="x" * 400))) == text(3)


async def test_a_request_waits_for_a_worker_that_comes_later(plant: Any, read: Read) -> None:
    await plant.start("router", "tokenize")
    rid = await plant.submit(words(3))
    await plant.start("decode")

    assert read[0](await plant.ended(rid)) == text(3)


@pytest.mark.parametrize("with_router", [True, False])
async def test_a_killed_decode_worker_is_replaced_in_mid_stream(plant: Any, read: Read, with_router: bool) -> None:
    random = Script(choices=((ScriptStep(random=20), ScriptStep(pause_ms=600), ScriptStep(random=20)),))
    processes = await plant.start(*(ALL if with_router else ALL[1:]))
    rid = await plant.submit(random)
    await some_tokens(plant, rid)
    before = read[1](await plant.log(rid))
    await plant.kill(processes[-1])
    if not with_router:
        await plant.start("router")
    await plant.start("decode")
    log = await plant.ended(rid)

    ids = read[1](log)
    assert ids[: len(before)] == before
    assert len(ids) == 41
    assert log.fin.attempts == 2
    assert len(await plant.bus.read(subjects.RUN, subjects.run(ING, rid, "fin"))) == 1


async def test_a_draining_decode_worker_hands_its_request_over_unharmed(plant: Any, read: Read) -> None:
    *_, first = await plant.start(*ALL)
    rid = await plant.submit(words(8, pause_ms=100))
    await some_tokens(plant, rid)
    draining = asyncio.create_task(first.drain())
    await plant.start("decode")
    await draining
    log = await plant.ended(rid)

    assert read[0](log) == text(8)
    assert log.lease.wid != first.wid
    assert log.fin.attempts == 1


async def test_a_killed_router_leaves_nothing_behind(plant: Any, read: Read) -> None:
    router, *_ = await plant.start(*ALL)
    rids = [await plant.submit(words(3, pause_ms=30)) for _ in range(10)]
    await plant.kill(router)
    rids += [await plant.submit(words(3)) for _ in range(10)]
    logs = [await plant.ended(rid) for rid in rids]

    assert all(read[0](log) == text(3) for log in logs)
    await plant.start("router")
    assert read[0](await plant.ended(await plant.submit(words(4)))) == text(4)


async def test_a_request_that_kills_its_workers_is_given_up_and_buried(plant: Any) -> None:
    """The poison breaks the engine as an out-of-memory kill would: the worker goes, its registry key goes."""
    router, tokenize, *_ = await plant.start("router", "tokenize")
    poison = Script(choices=((ScriptStep(fault="hang", attempts=9),),))
    rid = await plant.submit(poison)
    for _ in range(3):
        (decode,) = await plant.start("decode")

        async def is_taken(wid: str = decode.wid) -> bool:
            lease = (await plant.log(rid)).lease
            return lease is not None and lease.wid == wid

        await plant.until(is_taken)
        await plant.kill(decode)
    await plant.start("decode")
    log = await plant.ended(rid)

    assert log.fin.failure.code is Code.WORKER_CRASHED
    assert len(await plant.bus.read(subjects.DLQ, "dlq.>")) == 1
    assert router.wid
    assert tokenize.wid


async def test_a_cancelled_request_ends_within_a_step(plant: Any, read: Read) -> None:
    await plant.start(*ALL)
    rid = await plant.submit(words(1000, pause_ms=20))
    await some_tokens(plant, rid)
    await runlog.cancel(plant.bus, ING, rid, CancelRecord(reason="disconnect"))
    log = await plant.ended(rid, timeout_s=2)

    assert log.fin.failure.code is Code.CANCELLED
    assert log.fin.choices[0].n == len(read[1](log))


async def test_a_request_cancelled_before_anyone_took_it_ends_too(plant: Any) -> None:
    rid = await plant.submit(words(3))
    await runlog.cancel(plant.bus, ING, rid, CancelRecord(reason="disconnect"))
    await plant.start(*ALL)

    assert (await plant.ended(rid)).fin.failure.code is Code.CANCELLED
    assert await plant.num_queued() == 0


async def test_a_request_that_waited_too_long_is_dropped_before_it_computes(plant: Any) -> None:
    await plant.start("router", "tokenize")
    rid = await plant.submit(words(3), deadlines=Deadlines(queue_s=0.5, first_token_s=60, stall_s=15, total_s=60))
    await asyncio.sleep(1.6)
    await plant.start("decode")
    log = await plant.ended(rid)

    assert log.fin.failure.code is Code.QUEUE_TIMEOUT
    assert log.toks == []


async def test_the_total_timeout_keeps_the_partial_text(plant: Any, read: Read) -> None:
    await plant.start(*ALL)
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=2)
    log = await plant.ended(await plant.submit(words(1000, pause_ms=50), deadlines=deadlines))

    assert log.fin.failure.code is Code.TIMEOUT
    assert read[0](log).startswith("w0 ")


async def test_stop_strings_cut_text_ids_and_usage_alike(plant: Any, read: Read) -> None:
    await plant.start(*ALL)
    log = await plant.ended(await plant.submit(words(50), sampling=Sampling(seed=1, stop=("2 w",))))

    assert read[0](log) == "w0 w1 w"
    assert log.fin.choices == (ChoiceEnd(i=0, n=4, cause="stop", match="2 w"),)
    assert len(read[1](log)) == 4


async def test_max_tokens_zero_writes_only_the_end(plant: Any) -> None:
    await plant.start(*ALL)
    log = await plant.ended(await plant.submit(words(3), max_new=0))

    assert log.toks == []
    assert log.fin.choices == (ChoiceEnd(i=0, n=0, cause="length"),)


async def test_a_prompt_that_does_not_fit_ends_in_tokenize_with_the_known_words(plant: Any) -> None:
    await plant.start("tokenize")
    log = await plant.ended(await plant.submit(words(3), prompt="x" * 9000))

    assert log.fin.failure.code is Code.CONTEXT_LENGTH
    assert log.fin.failure.message.startswith("This model's maximum context length is 8192 tokens.")


async def test_a_failing_request_hurts_no_other(plant: Any, read: Read) -> None:
    await plant.start(*ALL)
    good = await plant.submit(words(20, pause_ms=20))
    bad = await plant.submit(Script(choices=((ScriptStep(text="a"), ScriptStep(fault="raise")),)))

    assert (await plant.ended(bad)).fin.failure.code is Code.INTERNAL
    assert read[0](await plant.ended(good)) == text(20)


@pytest.mark.parametrize("queue", ["tok", "route", "place"])
async def test_garbage_on_a_queue_is_buried_and_hurts_nobody(plant: Any, read: Read, queue: str) -> None:
    await plant.start(*ALL)
    await plant.bus.publish(f"work.{queue}.int.garbage", b"\xc1 not msgpack")

    assert read[0](await plant.ended(await plant.submit(words(3)))) == text(3)

    async def is_buried() -> bool:
        return len(await plant.bus.read(subjects.DLQ, "dlq.*.garbage")) == 1

    await plant.until(is_buried)
    assert await plant.num_queued() == 0


async def test_without_a_router_a_draining_worker_gives_its_request_back(plant: Any, read: Read) -> None:
    *_, first = await plant.start("tokenize", "prefill", "decode")
    rid = await plant.submit(words(8, pause_ms=100))
    await some_tokens(plant, rid)
    await first.drain()
    await plant.start("decode")

    assert read[0](await plant.ended(rid)) == text(8)


async def test_cached_tokens_never_include_the_block_that_is_always_computed(plant: Any) -> None:
    await plant.start("router", "decode")
    rid = new_rid()
    deadlines = Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=60)
    request = Request(rid=rid, ing=ING, model="scripted", deadlines=deadlines, max_new=1)
    item = Tokenized(
        request=request,
        prompt_ids=pack_ids([120] * 64),
        accepted_ms=time.time_ns() // 1_000_000,
        prefilled=64,
        cached=64,
    )
    await plant.bus.publish(subjects.place("int", rid), encode(item))
    log = await plant.ended(rid)

    assert log.fin.prompt == PromptUsage(prompt_tokens=64, cached_tokens=48)
