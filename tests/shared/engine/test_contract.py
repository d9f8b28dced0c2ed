"""What every engine promises, over both implementations. Accounting is checked after each step of `drive`."""

from dataclasses import replace

import pytest

from headrace.shared.engine import Engine, SamplerParams

GREEDY = SamplerParams(temperature=0)
SAMPLED = SamplerParams(temperature=1.2, top_p=0.9, seed=11)
PENALIZED = SamplerParams(temperature=0.8, seed=5, presence=1.5, frequency=0.3, repetition=1.2)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALIZED])


def prompt_of(length, salt=0):
    return tuple((7 * i + salt) % 90 for i in range(length))


def keys_of(prompt, block_tokens=4):
    """Content addresses, as the cache makes them: each names all tokens up to its block's end."""
    return tuple(repr(prompt[:end]) for end in range(block_tokens, len(prompt) + 1, block_tokens))


def test_a_sequence_gives_max_new_tokens_and_then_its_cause_once(make_engine, make_spec, drive):
    engine = make_engine()
    engine.add(make_spec(max_new=8))

    outputs = drive(engine)["a"]

    assert len([token for output in outputs for token in output.tokens]) == 8
    assert [output.cause for output in outputs if output.cause] == ["length"]
    assert outputs[-1].cause == "length"
    assert outputs[-1].num_computed == 3


def test_add_computes_nothing(make_engine, make_spec):
    engine = make_engine()

    engine.add(make_spec())

    assert engine.has_work()
    with pytest.raises(ValueError, match="computed"):
        engine.export("a", 0, 1)


def test_an_idle_engine_has_nothing_to_do(make_engine):
    engine = make_engine()

    assert not engine.has_work()
    assert engine.step() == []
    assert engine.next_due() is None


def test_a_stop_id_ends_the_sequence_and_is_reported(make_engine, make_spec, generate, drive):
    tokens = generate(make_engine(), make_spec())
    engine = make_engine()

    engine.add(make_spec(stop_ids=frozenset({tokens[2]})))
    outputs = drive(engine)["a"]

    first = tokens.index(tokens[2])
    assert [token for output in outputs for token in output.tokens] == tokens[: first + 1]
    assert outputs[-1].cause == "eos"


def test_the_end_of_the_context_ends_the_sequence(make_engine, make_spec, drive):
    engine = make_engine(max_context=12)
    engine.add(make_spec(max_new=50))

    outputs = drive(engine)["a"]

    assert sum(len(output.tokens) for output in outputs) == 9
    assert outputs[-1].cause == "context"


@SAMPLINGS
def test_a_sequence_goes_on_from_any_point_as_if_never_interrupted(make_engine, make_spec, generate, sampling):
    spec = make_spec(prompt=prompt_of(9), max_new=12, sampling=sampling, block_keys=keys_of(prompt_of(9)))
    whole = generate(make_engine(), spec)

    for done in range(len(whole)):
        engine = make_engine()
        assert whole[:done] + generate(engine, replace(spec, generated=tuple(whole[:done]))) == whole


@SAMPLINGS
def test_a_small_pool_gives_the_same_tokens_as_a_large_one(make_engine, make_spec, generate, drive, sampling):
    """Waiting and preemption cost time and nothing else."""
    specs = [make_spec(id=f"s{i}", prompt=prompt_of(3 + i, i), max_new=14, sampling=sampling) for i in range(4)]
    alone = {spec.id: generate(make_engine(), spec) for spec in specs}
    engine = make_engine(num_blocks=6)
    tokens = {spec.id: [] for spec in specs}
    for spec in specs:
        engine.add(spec)

    while engine.has_work():
        for output in engine.step():
            tokens[output.id] += output.tokens
            if output.cause:
                engine.release(output.id)
        engine.check()

    assert tokens == alone
    assert engine.pressure().num_sequences == 0


@SAMPLINGS
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_a_warm_cache_changes_no_token(make_engine, make_spec, generate, drive, sampling, length):
    prompt = prompt_of(length)
    engine = make_engine()
    spec = make_spec(prompt=prompt, sampling=sampling, block_keys=keys_of(prompt))
    cold = generate(engine, spec)

    assert engine.num_local(spec.block_keys) == length // 4
    engine.add(spec)
    warm = drive(engine)["a"]

    assert [token for output in warm for token in output.tokens] == cold
    assert warm[-1].num_cached == (length - 1) // 4 * 4
    engine.drop_cache()
    engine.release("a")
    engine.drop_cache()
    assert engine.num_local(spec.block_keys) == 0
    assert generate(engine, spec) == cold


def test_blocks_of_another_prompt_are_never_used(make_engine, make_spec, generate):
    engine = make_engine()
    first, second = prompt_of(9, salt=1), prompt_of(9, salt=2)
    alone = generate(make_engine(), make_spec(prompt=second))

    generate(engine, make_spec(prompt=first, block_keys=keys_of(first)))

    assert engine.num_local(keys_of(second)) == 0
    assert generate(engine, make_spec(prompt=second, block_keys=keys_of(second))) == alone


@SAMPLINGS
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_prefill_here_and_decode_there_give_the_same_tokens(make_engine, make_spec, generate, drive, sampling, length):
    prompt = prompt_of(length)
    spec = make_spec(prompt=prompt, sampling=sampling, block_keys=keys_of(prompt))
    whole = generate(make_engine(), spec)
    prefill, decode = make_engine(), make_engine()

    prefill.add(replace(spec, max_new=0))
    outputs = drive(prefill)["a"]
    payloads = prefill.export("a", 0, length // 4)
    prefill.release("a")
    decode.add(spec, payloads, 0)
    decoded = drive(decode)["a"]

    assert (outputs[-1].cause, outputs[-1].tokens, outputs[-1].num_computed) == ("length", (), length // 4 * 4)
    assert [token for output in decoded for token in output.tokens] == whole
    assert decoded[-1].num_cached == (length - 1) // 4 * 4
    assert decode.num_local(spec.block_keys) == length // 4
    assert decode.export("a", 0, length // 4) == payloads


def test_imported_blocks_join_on_to_local_ones(make_engine, make_spec, generate, drive):
    prompt = prompt_of(14)
    spec = make_spec(prompt=prompt, block_keys=keys_of(prompt))
    source, target = make_engine(), make_engine()
    whole = generate(target, spec)
    source.add(replace(spec, max_new=0))
    drive(source)
    other = make_engine()
    generate(other, make_spec(prompt=prompt[:9], block_keys=keys_of(prompt[:9])))

    num_local = other.num_local(spec.block_keys)
    other.add(spec, source.export("a", num_local, 3), num_local)
    outputs = drive(other)["a"]

    assert num_local == 2
    assert [token for output in outputs for token in output.tokens] == whole
    assert outputs[-1].num_cached == 12


def test_a_full_prefill_hit_ends_without_computing(make_engine, make_spec, drive):
    prompt = prompt_of(8)
    engine = make_engine()
    spec = make_spec(prompt=prompt, max_new=0, block_keys=keys_of(prompt))
    engine.add(spec)
    drive(engine)
    engine.release("a")

    engine.add(spec)
    (output,) = drive(engine)["a"]

    assert (output.cause, output.num_computed, output.num_cached) == ("length", 8, 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": ()}, "empty"),
        ({"prompt": tuple(range(65))}, "context"),
        ({"prompt": tuple(range(64)), "generated": (1,)}, "context"),
        ({"max_new": -1}, "max_new"),
        ({"max_new": 1, "generated": (1, 2)}, "max_new"),
        ({"prompt": (1, 900)}, "vocabulary"),
        ({"prompt": (-1,)}, "vocabulary"),
        ({"block_keys": ("k",)}, "block_keys"),
    ],
)
def test_what_can_never_run_is_refused_and_harms_nobody(make_engine, make_spec, generate, changes, reason):
    engine = make_engine()

    with pytest.raises(ValueError, match=reason):
        engine.add(make_spec(**changes))

    assert engine.pressure().num_sequences == 0
    assert len(generate(engine, make_spec())) == 8


def test_a_payload_of_the_wrong_size_or_place_is_refused(make_engine, make_spec, drive):
    engine, spec = make_engine(), make_spec(prompt=prompt_of(9))
    engine.add(spec)
    drive(engine)
    (payload,) = engine.export("a", 0, 1)

    for blocks, first in (([payload[:-1]], 0), ([b""], 0), ([payload], 2), ([payload], -1), ([payload] * 3, 0)):
        with pytest.raises(ValueError, match="block"):
            engine.add(replace(spec, id="b"), blocks, first)
    assert engine.pressure().num_sequences == 1


@pytest.mark.parametrize(("first", "last"), [(0, 3), (-1, 1), (2, 1)])
def test_only_full_computed_prompt_blocks_are_exported(make_engine, make_spec, drive, first, last):
    engine = make_engine()
    engine.add(make_spec(prompt=prompt_of(9)))
    drive(engine)

    assert len(engine.export("a", 0, 2)) == 2
    with pytest.raises(ValueError, match="block"):
        engine.export("a", first, last)
    with pytest.raises(ValueError, match="held"):
        engine.export("unknown", 0, 1)


def test_an_id_in_use_is_refused_until_it_is_released(make_engine, make_spec, drive):
    engine = make_engine()
    engine.add(make_spec())
    drive(engine)

    with pytest.raises(ValueError, match="in use"):
        engine.add(make_spec())
    engine.release("a")
    engine.add(make_spec())


@pytest.mark.parametrize("num_steps", [0, 1, 2, 50])
def test_release_in_any_state_gives_everything_back(make_engine, make_spec, num_steps):
    """Waiting, half computed, generating, finished, and finished without a report."""
    engine = make_engine(num_blocks=16)
    idle = engine.pressure()
    for i in range(6):
        engine.add(make_spec(id=f"s{i}", prompt=prompt_of(30, i), max_new=20))
    engine.add(make_spec(id="over", max_new=1, generated=(5,)))
    for _ in range(num_steps):
        engine.step()

    for i in range(6):
        engine.release(f"s{i}")
        engine.check()
    engine.release("over")
    engine.release("over")
    engine.release("unknown")

    assert engine.pressure() == idle
    assert not engine.has_work()
    assert engine.step() == []


def test_pressure_tells_what_is_held(make_engine, make_spec, drive):
    engine = make_engine(num_blocks=10, max_batch=1)
    engine.add(make_spec(id="a", prompt=prompt_of(9)))
    engine.add(make_spec(id="b", prompt=prompt_of(9)))

    pressure = engine.pressure()

    assert (pressure.num_sequences, pressure.num_waiting) == (2, 1)
    assert pressure.total_tokens == 40
    assert pressure.used_blocks == 3
    assert pressure.free_tokens == 28


def test_everything_held_is_a_finished_sequence_nobody_released(make_engine, make_spec, drive):
    """Then there is no work to spin on, and work again after the release."""
    engine = make_engine(num_blocks=4)
    engine.add(make_spec(id="a", prompt=prompt_of(12), max_new=2))
    drive(engine)
    engine.add(make_spec(id="b", prompt=prompt_of(12, 1), max_new=2))

    assert not engine.has_work()
    engine.release("a")
    assert sum(len(output.tokens) for output in drive(engine)["b"]) == 2


def test_equal_prompts_at_once_give_equal_answers(make_engine, make_spec, generate, drive):
    prompt = prompt_of(24)
    spec = make_spec(prompt=prompt, block_keys=keys_of(prompt))
    alone = generate(make_engine(), spec)
    engine: Engine = make_engine(num_blocks=128, max_batch=24)
    for i in range(24):
        engine.add(replace(spec, id=f"s{i}"))

    outputs = drive(engine)

    for sequence in outputs.values():
        assert [token for output in sequence for token in output.tokens] == alone
    assert sum(sequence[-1].num_cached for sequence in outputs.values()) == 23 * 20
