"""What the torch engine adds to the contract: chunks, budgets, numeric failures, memory."""

from dataclasses import replace

import pytest

from headrace.shared.engine import SamplerParams, StepError
from headrace.shared.engine.engine import default_kv_bytes
from headrace.shared.engine.sampler import SampleRow, sample
from headrace.shared.errors import ConfigError

PROMPT = tuple(range(3, 40))
SAMPLED = SamplerParams(temperature=1.5, seed=3)


@pytest.mark.parametrize("step_tokens", [1, 2, 3, 4, 5, 7, 16, 64])
def test_a_prompt_in_chunks_gives_the_tokens_of_the_whole(make_torch, make_spec, generate, step_tokens):
    spec = make_spec(prompt=PROMPT, max_new=12, sampling=SAMPLED)

    assert generate(make_torch(step_tokens=step_tokens), spec) == generate(make_torch(step_tokens=256), spec)


def test_no_step_computes_more_than_its_budget(make_torch, make_spec, drive, loaded):
    engine = make_torch(step_tokens=8)
    for i in range(5):
        engine.add(make_spec(id=f"s{i}", prompt=PROMPT[: 5 * i + 1]))

    drive(engine)

    assert max(loaded.decoder.rows_per_step) == 8


def test_a_sequence_is_the_same_alone_and_among_others(make_torch, make_spec, generate, drive):
    """Same seed, any neighbours, any order of arrival."""
    specs = [
        make_spec(id=f"s{i}", prompt=PROMPT[: 3 * i + 2], max_new=10, sampling=replace(SAMPLED, choice=i % 2))
        for i in range(7)
    ]
    alone = {spec.id: generate(make_torch(), spec) for spec in specs}

    for order in (specs, specs[::-1]):
        engine = make_torch(step_tokens=9)
        for spec in order:
            engine.add(spec)
        together = drive(engine)
        assert {name: [token for o in outputs for token in o.tokens] for name, outputs in together.items()} == alone


def test_seed_and_choice_make_the_difference(make_torch, make_spec, generate):
    runs = [
        generate(make_torch(), make_spec(max_new=20, sampling=replace(SAMPLED, seed=seed, choice=choice)))
        for seed, choice in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]

    assert runs[0] == runs[3]
    assert len({tuple(run) for run in runs}) == 3


def test_a_token_is_drawn_with_the_noise_of_its_absolute_position(make_torch, make_spec, loaded):
    """A fixed meaning of `position`, so that an engine of another release continues with the same text."""
    sampling = SamplerParams(temperature=30.0, seed=9, choice=1)
    engine = make_torch()
    engine.add(make_spec(prompt=PROMPT[:6], max_new=30, sampling=sampling))

    for position in range(6, 36):
        (output,) = engine.step()
        expected = sample(loaded.decoder.last_logits.clone(), [SampleRow("a", sampling, position)])
        assert list(output.tokens) == expected


def test_a_prefill_asks_for_no_logits(make_torch, make_spec, drive):
    engine = make_torch()
    engine.add(make_spec(prompt=PROMPT, max_new=0, sampling=SAMPLED))

    (output, *_) = drive(engine)["a"][-1:]

    assert (output.tokens, output.num_computed, output.cause) == ((), 36, "length")


def test_progress_of_a_long_prompt_is_reported_step_by_step(make_torch, make_spec, drive):
    engine = make_torch(step_tokens=16)
    engine.add(make_spec(prompt=PROMPT, max_new=1))

    assert [output.num_computed for output in drive(engine)["a"]] == [16, 32, 37]


def test_a_sequence_without_numbers_fails_alone(make_torch, make_spec, generate, drive, loaded):
    good = make_spec(id="good", max_new=6, sampling=SAMPLED)
    alone = generate(make_torch(), good)
    loaded.decoder.poison = 77
    engine = make_torch()
    engine.add(good)
    engine.add(make_spec(id="bad", prompt=(77, 1), sampling=SAMPLED))

    with pytest.raises(StepError) as caught:
        engine.step()
    outputs = drive(engine)

    assert caught.value.id == "bad"
    assert set(outputs) == {"good"}
    assert [token for output in outputs["good"] for token in output.tokens] == alone
    engine.release("bad")
    engine.release("good")
    assert engine.pressure().used_blocks == 0


def test_sampling_without_meaning_is_refused_at_the_door(make_torch, make_spec):
    with pytest.raises(ValueError, match="top_p"):
        make_torch().add(make_spec(sampling=SamplerParams(top_p=1.5)))


def test_a_preempted_sequence_counts_its_penalties_as_before(make_torch, make_spec, generate, loaded):
    """Enough sequences in a pool for one and a half: the younger one is computed twice, and says the same."""
    sampling = SamplerParams(temperature=0, presence=1.5)
    specs = [make_spec(id=f"s{i}", prompt=PROMPT[i : i + 3], max_new=30, sampling=sampling) for i in range(2)]
    alone = {spec.id: generate(make_torch(), spec) for spec in specs}
    loaded.decoder.rows_per_step.clear()
    engine = make_torch(num_blocks=13)
    tokens = {spec.id: [] for spec in specs}
    for spec in specs:
        engine.add(spec)

    while engine.has_work():
        for output in engine.step():
            tokens[output.id] += output.tokens
            if output.cause:
                engine.release(output.id)

    assert tokens == alone
    assert sum(loaded.decoder.rows_per_step) > 2 * 32


def test_a_pool_smaller_than_the_context_shortens_it(make_torch, make_spec, drive):
    engine = make_torch(num_blocks=3)
    engine.add(make_spec(max_new=60))

    outputs = drive(engine)["a"]

    assert engine.max_context == 12
    assert (sum(len(output.tokens) for output in outputs), outputs[-1].cause) == (9, "context")
    with pytest.raises(ValueError, match="context of 12"):
        engine.add(make_spec(id="long", prompt=PROMPT))


def test_memory_for_less_than_one_block_is_refused(make_torch):
    with pytest.raises(ConfigError, match="does not hold one block"):
        make_torch(num_blocks=0)


def test_the_default_memory_is_a_modest_share_of_the_machine():
    assert 0 < default_kv_bytes() <= 1 << 30
    assert default_kv_bytes(0.5) == default_kv_bytes() // 2
