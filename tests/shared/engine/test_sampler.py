"""Each sampling parameter against values computed by hand; probabilities by the definition, one token at a time."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from headrace.shared.engine import SamplerParams, StepError
from headrace.shared.engine.penalties import SeenTokens
from headrace.shared.engine.sampler import SampleRow, sample, uniform, validate
from headrace.shared.kernels import library

LOGITS = [math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]
PLAIN = SamplerParams(temperature=1.0, seed=7)


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def drawn_by(request, monkeypatch):
    """Every promise holds on both paths; without kernels on this machine both are torch."""
    if request.param == "torch":
        monkeypatch.setattr(library, "is_available", lambda: False)


def draw(params, logits=LOGITS, num=400, seen=None):
    """Ids drawn at `num` positions."""
    rows = [SampleRow("a", params, position, seen) for position in range(num)]
    return sample(torch.tensor([logits] * num), rows)


def reference(probabilities, noise):
    """The first id at which the running sum of the probabilities passes the noise."""
    total, running = sum(probabilities), 0.0
    for token, probability in enumerate(probabilities):
        running += probability
        if running > noise * total:
            return token
    raise AssertionError("noise is below 1")


def expected(probabilities, num=400, params=PLAIN):
    return [reference(probabilities, uniform(params.seed, params.choice, p)) for p in range(num)]


def test_the_noise_never_changes():
    """A golden value: another release of this function would fork every sequence resumed across it."""
    assert uniform(0, 0, 0) == 0.9806404073469595
    assert uniform(1234, 2, 77) == 0.8542025738963398


def test_the_noise_is_uniform_and_each_argument_matters():
    values = [uniform(3, 0, position) for position in range(20_000)]

    tenths = Counter(int(value * 10) for value in values)
    assert sum((n - 2000) ** 2 / 2000 for n in tenths.values()) < 27.9  # chi-square, 9 degrees, p = 0.001
    assert len({uniform(3, 0, 0), uniform(4, 0, 0), uniform(3, 1, 0), uniform(3, 0, 1)}) == 4


def test_a_draw_inverts_the_cumulative_distribution_in_order_of_id():
    assert draw(PLAIN) == expected([0.1, 0.4, 0.05, 0.3, 0.15])


def test_draws_follow_the_distribution():
    num = 20_000
    counts = Counter(draw(PLAIN, num=num))

    chi_square = sum((counts[i] - num * math.exp(x)) ** 2 / (num * math.exp(x)) for i, x in enumerate(LOGITS))
    assert chi_square < 18.5  # 4 degrees, p = 0.001


@pytest.mark.parametrize("temperature", [0.25, 0.5, 2.0])
def test_temperature_divides_the_logits(temperature):
    weights = [math.exp(x / temperature) for x in LOGITS]

    assert draw(replace(PLAIN, temperature=temperature)) == expected(weights)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_a_tiny_temperature_is_greedy_and_overflows_nothing(temperature):
    assert set(draw(replace(PLAIN, temperature=temperature))) == {1}


def test_temperature_zero_takes_the_lowest_id_among_the_best():
    assert set(draw(SamplerParams(temperature=0), logits=[1.0, 3.0, 2.0, 3.0, 3.0])) == {1}


def test_equal_logits_at_a_temperature_are_not_a_tie():
    assert set(draw(PLAIN, logits=[0.0, 0.0, 0.0])) == {0, 1, 2}


@pytest.mark.parametrize("off", [0, -1, 5, 1000])
def test_top_k_off_or_above_the_vocabulary_keeps_everything(off):
    assert draw(replace(PLAIN, top_k=off)) == draw(PLAIN)


def test_top_k_keeps_the_k_best():
    assert draw(replace(PLAIN, top_k=2)) == expected([0, 0.4, 0, 0.3, 0])
    assert draw(replace(PLAIN, top_k=3)) == expected([0, 0.4, 0, 0.3, 0.15])


def test_top_k_takes_the_lower_ids_of_equals():
    assert set(draw(replace(PLAIN, top_k=2), logits=[0.0, 1.0, 1.0, 1.0])) == {1, 2}


def test_top_p_keeps_the_fewest_best_that_reach_it():
    assert draw(replace(PLAIN, top_p=0.69)) == expected([0, 0.4, 0, 0.3, 0])
    assert draw(replace(PLAIN, top_p=0.71)) == expected([0, 0.4, 0, 0.3, 0.15])
    assert draw(replace(PLAIN, top_p=0.3)) == expected([0, 0.4, 0, 0, 0])


def test_top_p_zero_keeps_one_token_even_among_equals():
    assert set(draw(replace(PLAIN, top_p=0), logits=[0.0, 2.0, 2.0])) == {1}


def test_top_p_is_a_share_of_what_top_k_keeps():
    """Of .4 and .3 alone, .4 is 57 %: it reaches 0.5 by itself, as it does not of all five."""
    assert draw(replace(PLAIN, top_p=0.5)) == expected([0, 0.4, 0, 0.3, 0])
    assert draw(replace(PLAIN, top_p=0.5, top_k=2)) == expected([0, 0.4, 0, 0, 0])


def test_min_p_drops_what_is_far_below_the_best():
    assert draw(replace(PLAIN, min_p=0.3)) == expected([0, 0.4, 0, 0.3, 0.15])
    assert draw(replace(PLAIN, min_p=1.0)) == expected([0, 0.4, 0, 0, 0])


def test_logit_bias_is_added():
    weights = [0.1 * math.exp(2), 0.4 * math.exp(-100), 0.05, 0.3, 0.15]

    assert draw(replace(PLAIN, logit_bias={0: 2.0, 1: -100.0})) == expected(weights)
    assert set(draw(SamplerParams(temperature=0, logit_bias={2: 100.0}))) == {2}


def seen_by(prompt, generated):
    seen = SeenTokens(len(prompt))
    seen.extend([*prompt, *generated])
    return seen


def test_repetition_divides_positive_and_multiplies_negative_logits_of_all_seen():
    logits = torch.tensor([2.0, -1.0, 3.0, 0.5])

    seen_by([0, 1], [2]).penalize(logits, SamplerParams(repetition=2.0))

    assert logits.tolist() == [1.0, -2.0, 1.5, 0.5]


def test_frequency_and_presence_count_generated_tokens_only():
    logits = torch.zeros(4)

    seen_by([0, 0, 0, 1], [1, 1, 2]).penalize(logits, SamplerParams(frequency=0.5, presence=0.25))

    assert logits.tolist() == [0.0, -1.25, -0.75, 0.0]


@pytest.mark.parametrize("fields", [{"frequency": 1.0}, {"presence": 1.0}, {"repetition": 1.5}])
def test_each_penalty_changes_the_greedy_choice(fields):
    logits = [1.0, 0.9]
    params = SamplerParams(temperature=0, **fields)

    assert draw(params, logits, num=1, seen=seen_by([1], [])) == [0]
    assert draw(params, logits, num=1, seen=seen_by([], [0])) == [1]


def test_repetition_counts_the_prompt_on_the_first_token_presence_does_not():
    logits = [1.0, 0.9]

    seen = seen_by([0, 0, 0], [])

    assert draw(SamplerParams(temperature=0, repetition=1.5), logits, 1, seen) == [1]
    assert draw(SamplerParams(temperature=0, presence=1.5), logits, 1, seen) == [0]
    assert draw(SamplerParams(temperature=0, frequency=1.5), logits, 1, seen) == [0]


def test_counts_kept_step_by_step_are_those_of_the_whole():
    tokens = [5 * i % 301 for i in range(700)]
    stepwise, params = SeenTokens(100), SamplerParams(frequency=0.1, presence=0.3, repetition=1.1)
    for length in range(0, 701, 7):
        stepwise.extend(tokens[:length])
    first, second = torch.linspace(-3, 3, 301), torch.linspace(-3, 3, 301)

    stepwise.penalize(first, params)
    seen_by(tokens[:100], tokens[100:]).penalize(second, params)

    assert torch.equal(first, second)


MIXED = [
    SamplerParams(temperature=0),
    SamplerParams(temperature=0.7, top_p=0.9, seed=1),
    SamplerParams(temperature=1.3, top_k=40, seed=2, choice=1),
    SamplerParams(temperature=1.0, min_p=0.02, seed=3),
    SamplerParams(temperature=2.5, top_p=0.98, seed=4, logit_bias={3: 5.0}),
    SamplerParams(temperature=1.0, top_k=300, top_p=0.99, seed=5),
    SamplerParams(temperature=1.0, top_k=2000, top_p=0.5, seed=5),
    SamplerParams(temperature=1.0, seed=6, repetition=1.3, presence=0.5, frequency=0.5),
    SamplerParams(temperature=50.0, top_p=0.999, seed=7),
]


def test_a_row_is_the_same_alone_and_in_any_company():
    torch.manual_seed(0)
    logits = torch.randn(len(MIXED), 9000) * 3
    seen = [seen_by([1, 2], [3, 3]) if params.repetition != 1 else None for params in MIXED]
    rows = [SampleRow(str(i), params, 100 + i, seen[i]) for i, params in enumerate(MIXED)]

    together = sample(logits.clone(), rows)

    assert sample(logits.flip(0), rows[::-1]) == together[::-1]
    assert [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)] == together


@pytest.mark.parametrize("scale", [0.0, 0.5, 8.0])
@pytest.mark.parametrize("params", [params for params in MIXED if params.temperature and params.repetition == 1])
def test_cutting_among_candidates_equals_sorting_everything(params, scale):
    """The plain way: sort all, cut, renormalise, walk in order of id. Flat rows leave no candidates to stop at."""
    torch.manual_seed(1)
    row = (torch.randn(6000) * scale).round(decimals=1)

    (token,) = sample(row[None].clone(), [SampleRow("a", params, 5)])

    assert token == plainly(row, params, uniform(params.seed, params.choice, 5))


def plainly(row, params, noise):
    scaled = row.clone()
    for token, bias in params.logit_bias.items():
        scaled[token] += bias
    weights = ((scaled - scaled.max()).double() / params.temperature).exp()
    order = sorted(range(len(weights)), key=lambda i: (-weights[i].item(), i))
    kept = [i for i in order if weights[i] >= params.min_p][: params.top_k or None]
    total, running, nucleus = sum(weights[i].item() for i in kept), 0.0, []
    for i in kept:
        nucleus.append(i)
        running += weights[i].item()
        if params.top_p < 1 and running >= params.top_p * total:
            break
    mask = torch.zeros(len(weights), dtype=torch.float64)
    mask[nucleus] = 1
    return reference((weights * mask).tolist(), noise)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_without_numbers_names_its_sequence(value):
    logits = torch.zeros(3, 5)
    logits[1, 3] = value

    with pytest.raises(StepError, match="finite") as caught:
        sample(logits, [SampleRow(name, PLAIN, 0) for name in "abc"])

    assert caught.value.id == "b"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("top_k", -2),
        ("min_p", 2.0),
        ("presence", math.nan),
        ("frequency", math.inf),
        ("repetition", 0.0),
        ("logit_bias", {5: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        validate(replace(PLAIN, **{field: value}), vocab_size=5)


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0), ("top_p", 0), ("top_k", 0), ("top_k", -1), ("min_p", 0)]
)
def test_zero_is_a_value_and_not_a_default(field, value):
    validate(replace(PLAIN, **{field: value}), vocab_size=5)
