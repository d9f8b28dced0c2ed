"""From ids to records: any grouping gives the same log, and a log can be taken over after any token."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.shared import streams
from headrace.shared.bus.memory import MemoryServer
from headrace.shared.errors import FencedError
from headrace.shared.messages import Sampling
from headrace.shared.records import EndEvent, PromptUsage
from headrace.shared.text.pipeline import TextPipeline

EOS = 257

stops = st.lists(st.sampled_from(["a", "ab", "bab", "é", "\ufffd", "ba"]), max_size=2, unique=True).map(tuple)
samplings = st.builds(
    Sampling,
    stop=stops,
    include_stop=st.booleans(),
    stop_ids=st.sampled_from([(), (ord("b"),), (EOS,)]),
    skip_special=st.booleans(),
)
# Bytes of half and whole characters, stop texts, control tokens.
tokens = st.lists(st.sampled_from([*b"ab", *"é".encode(), 256, 0xE2]), min_size=1, max_size=30)
causes = st.sampled_from(["eos", "length"])


def reference(pipeline, sampling, ids, cause):
    """(text, ids, end) by the pipeline alone, one id at a time."""
    events = []
    for index, token in enumerate(ids):
        is_end_token = cause == "eos" and index == len(ids) - 1 and token not in sampling.stop_ids
        if not is_end_token:
            events += pipeline.push([token])
        if pipeline.match is not None:
            ids = ids[: index + 1]
            break
    events += pipeline.finish(cause)
    text = "".join(event.s for event in events if not isinstance(event, EndEvent))
    return text, ids, events[-1]


async def provisioned():
    bus = MemoryServer().connect()
    await streams.provision(bus)
    return bus


def expected_of(kit, sampling, ids, cause):
    return reference(TextPipeline(kit.tokenizer, sampling), sampling, ids, cause)


def ended_by(ids, cause):
    return [*ids, EOS] if cause == "eos" else ids


@settings(max_examples=200, deadline=None)
@given(
    sampling=samplings, ids=tokens, cause=causes, cuts=st.sets(st.integers(1, 29)), chunk=st.sampled_from([1, 3, 64])
)
def test_any_grouping_of_tokens_gives_the_same_log(kit, sampling, ids, cause, cuts, chunk):
    ids = ended_by(ids, cause)

    async def play():
        scribe = kit.Scribe(await provisioned())
        writer = await scribe.writer(sampling, chunk_tokens=chunk)
        writing = asyncio.create_task(writer.write_all())
        bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
        for first, last in pairwise(bounds):
            writer.feed(ids[first:last], cause if last == len(ids) else None)
            await asyncio.sleep(0)
        return await writing, await scribe.log()

    ending, log = asyncio.run(play())

    text, expected, end = expected_of(kit, sampling, ids, cause)
    assert kit.text(log) == text
    assert kit.ids(log) == expected
    assert kit.ends(log) == [end]
    assert (ending.cause, ending.match) == (end.cause, end.match)
    assert all(len(chunk_of.t) <= 4 * chunk for _, record in log.toks for chunk_of in record.choices)


@settings(max_examples=100, deadline=None)
@given(sampling=samplings, ids=tokens, cause=causes, data=st.data())
def test_a_log_taken_over_after_any_record_ends_the_same(kit, sampling, ids, cause, data):
    ids = ended_by(ids, cause)
    text, expected, end = expected_of(kit, sampling, ids, cause)
    at = data.draw(st.integers(0, len(expected) - 1))

    async def play():
        scribe = kit.Scribe(await provisioned())
        first = await scribe.writer(sampling)
        first.feed(ids[:at], None)
        assert await first.flush() is None
        second = await scribe.writer(sampling, over=scribe.lease.seq)
        second.feed(ids[at:], cause)
        await second.write_all()
        return await scribe.log(), second

    log, second = asyncio.run(play())

    assert kit.text(log) == text
    assert kit.ids(log) == expected
    assert kit.ends(log) == [end]
    assert second.num_logged == len(expected)


async def test_tokens_behind_a_stop_are_never_logged(bus, kit):
    scribe = kit.Scribe(bus)
    writer = await scribe.writer(Sampling(stop=("stop",)))
    writer.feed(b"go, stop and more", None)

    ending = await writer.write_all()

    log = await scribe.log()
    assert (ending.cause, ending.match) == ("stop", "stop")
    assert bytes(kit.ids(log)) == b"go, stop"
    assert kit.text(log) == "go, "
    assert writer.summary(ending).n == 8


async def test_a_stopped_writer_finishes_its_append_and_no_more(bus, kit):
    scribe = kit.Scribe(bus)
    writer = await scribe.writer(Sampling(), chunk_tokens=2)
    writing = asyncio.create_task(writer.write_all())
    writer.feed(b"abcdef", None)
    await asyncio.sleep(0)  # the writer wakes and begins its first append
    writer.stop()

    assert await writing is None
    assert bytes(kit.ids(await scribe.log())) == b"ab"
    assert await writer.flush() is None
    assert bytes(kit.ids(await scribe.log())) == b"abcdef"


async def test_an_end_without_tokens_is_flushed_too(bus, kit):
    scribe = kit.Scribe(bus)
    writer = await scribe.writer(Sampling(stop=("abc",)))
    writer.feed(b"xab", None)
    await writer.flush()
    writer.feed((), "length")

    ending = await writer.flush()

    assert ending.cause == "length"
    assert kit.text(await scribe.log()) == "xab"


async def test_usage_goes_into_the_first_record_only(bus, kit):
    scribe = kit.Scribe(bus)
    writer = await scribe.writer(Sampling(), chunk_tokens=1)
    writer.announce(PromptUsage(prompt_tokens=5), b"ids!")
    writer.feed(b"ab", "length")
    await writer.write_all()

    records = [record for _, record in (await scribe.log()).toks]
    assert [record.prompt for record in records] == [PromptUsage(prompt_tokens=5), None]
    assert [record.prompt_ids for record in records] == [b"ids!", None]


async def test_a_record_of_long_tokens_is_cut_by_its_size(bus, kit):
    scribe = kit.Scribe(bus)
    writer = await scribe.writer(Sampling())
    scribe.pipeline._extra = {1000: b"x" * 10_000}
    writer.feed([1000] * 20, "length")
    await writer.write_all()

    log = await scribe.log()
    assert kit.text(log) == "x" * 200_000
    sizes = [len(event.s) for _, r in log.toks for c in r.choices for event in c.ev if not isinstance(event, EndEvent)]
    assert max(sizes) < 48 << 10


async def test_a_writer_that_lost_its_lease_writes_nothing(bus, kit):
    scribe, rival = kit.Scribe(bus), kit.Scribe(bus)
    writer = await scribe.writer(Sampling())
    await rival.writer(Sampling(), over=scribe.lease.seq)
    writer.feed(b"late", None)

    with pytest.raises(FencedError):
        await writer.write_all()
    assert (await scribe.log()).toks == []
