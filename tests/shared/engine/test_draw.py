"""What the compiled kernels draw and what torch draws from the same noise differ at rounded boundaries only."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.shared.engine import SamplerParams
from headrace.shared.engine.draw import draw
from headrace.shared.kernels import library

needs_kernels = pytest.mark.skipif(not library.is_available(), reason="this machine has no compiled kernels")
pytestmark = needs_kernels

ROUNDING = 1e-6
ALMOST_ONE = 1 - 2.0**-53
SIZES = [1, 2, 15, 16, 17, 100, 511, 512, 513, 1025, 6000]
TEMPERATURES = [1e-6, 0.3, 0.8, 1.0, 1.7, 50.0, 1e6]


def draw_compiled(logits, params, noise):
    first, row_bytes = logits.data_ptr(), logits.stride(0) * logits.itemsize
    rows = [
        library.Draw(
            logits=first + index * row_bytes,
            temperature=row.temperature,
            top_p=row.top_p,
            min_p=row.min_p,
            top_k=max(row.top_k, 0),
            noise=value,
        )
        for index, (row, value) in enumerate(zip(params, noise, strict=True))
    ]
    return library.draw(rows, logits.shape[-1])


def random_params(rng, vocab):
    return SamplerParams(
        temperature=float(rng.choice(TEMPERATURES)),
        top_p=float(rng.choice([0.0, 0.3, 0.9, 0.999, 1.0, 1.0, rng.random()])),
        top_k=int(rng.choice([-1, 0, 0, 1, 40, vocab, vocab + 7, rng.integers(1, vocab + 1)])),
        min_p=float(rng.choice([0.0, 0.0, 0.02, 0.5, 1.0, rng.random()])),
    )


def random_row(rng, vocab):
    row = rng.standard_normal(vocab) * rng.choice([0.0, 0.1, 1.0, 3.0, 10.0]) + rng.choice([-30.0, 0.0, 30.0])
    if rng.random() < 0.3:
        row = row.round(1)  # many equals
    if rng.random() < 0.2:
        row[rng.integers(vocab)] += 12.0
    if rng.random() < 0.3:
        row[rng.random(vocab) < 0.5] = -math.inf
        row[rng.integers(vocab)] = 1.0
    return row


def random_case(rng, vocab, num_rows):
    logits = torch.tensor(np.stack([random_row(rng, vocab) for _ in range(num_rows)]), dtype=torch.float32)
    params = [random_params(rng, vocab) for _ in range(num_rows)]
    noise = [float(value) for value in rng.choice([0.0, ALMOST_ONE, *rng.random(30)], num_rows)]
    return logits, params, noise


def is_near(token, row, params, noise):
    """Whether torch may draw it when noise and cuts move by no more than rounding may move them."""
    steps = (-ROUNDING, 0.0, ROUNDING)
    cases = [
        replace(
            params,
            top_p=max(params.top_p + p, 0.0) if params.top_p < 1 else 1.0,
            min_p=min(params.min_p * (1 + m), 1.0),
        )
        for p, m in itertools.product(steps, steps)
    ]
    rows = row.expand(len(cases), -1)
    lows = draw(rows, cases, [max(noise - ROUNDING, 0.0)] * len(cases))
    is_last = noise + ROUNDING >= 1
    highs = [len(row) - 1] * len(cases) if is_last else draw(rows, cases, [noise + ROUNDING] * len(cases))
    return any(low <= token <= high for low, high in zip(lows, highs, strict=True))


@pytest.mark.parametrize("vocab", SIZES)
def test_the_kernels_draw_what_torch_draws(vocab):
    rng = np.random.default_rng(vocab)
    logits, params, noise = random_case(rng, vocab, 600)

    found = draw_compiled(logits, params, noise)

    plain = draw(logits, params, noise)
    different = [index for index in range(len(found)) if found[index] != plain[index]]
    assert len(different) <= 3
    for index in different:
        assert is_near(found[index], logits[index], params[index], noise[index]), params[index]


@pytest.mark.parametrize("temperature", [0.05, 0.8, 5.0])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 40}, {"top_k": 3000, "top_p": 0.95}, {"min_p": 0.01}])
def test_a_whole_vocabulary_is_drawn_as_torch_draws_it(temperature, cut):
    logits = torch.randn((1, 49_152), generator=torch.Generator().manual_seed(5)) * 3
    params, noise = [SamplerParams(temperature=temperature, **cut)] * 64, np.linspace(0, ALMOST_ONE, 64).tolist()
    many = logits.expand(64, -1)

    found = draw_compiled(many, params, noise)

    plain = draw(many, params, noise)
    for index, (token, other) in enumerate(zip(found, plain, strict=True)):
        assert token == other or is_near(token, logits[0], params[0], noise[index])


def test_a_flat_tail_weighs_what_it_should():
    """49,151 tokens ten below the best: rounding that errs alike for all of them would move every boundary."""
    logits = torch.full((1, 49_152), -7.003)
    logits[0, 0] = 3.0
    noise = [0.3 + ROUNDING, 0.5, 0.8]
    share = math.exp(-10.003 / 0.9)
    head = 1 / (1 + 49_151 * share)

    found = draw_compiled(logits.expand(3, -1), [SamplerParams(temperature=0.9)] * 3, noise)

    cells = [0 if value < head else 1 + int((value / head - 1) / share) for value in noise]
    assert all(abs(token - cell) <= 1 for token, cell in zip(found, cells, strict=True))


def test_a_row_is_the_same_alone_and_among_31_others():
    logits, params, noise = random_case(np.random.default_rng(9), 4099, 32)

    together = draw_compiled(logits, params, noise)

    alone = [
        draw_compiled(logits[i : i + 1].clone(), params[i : i + 1], noise[i : i + 1])[0] for i in range(len(params))
    ]
    assert together == alone


@pytest.mark.parametrize("noise", [0.0, 0.5, ALMOST_ONE])
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-6, 1.0, 1e6, 1e300])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.5}, {"top_k": 2}, {"top_k": 2, "top_p": 0.99}])
def test_what_has_no_weight_is_never_drawn(noise, temperature, cut):
    """Only ids 18 and 20 can be: the largest numbers and infinities overflow nothing."""
    logits = torch.full((1, 37), -math.inf)
    logits[0, [18, 20]] = 3e38
    logits[0, 30] = -3e38

    (token,) = draw_compiled(logits, [SamplerParams(temperature=temperature, **cut)], [noise])

    assert token in (18, 20) or (token == 30 and temperature == 1e300)


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("cut", [{}, {"top_k": 7}, {"top_p": 0.5}])
def test_equal_logits_are_drawn_evenly(vocab, cut):
    num_kept = min(vocab, 7) if "top_k" in cut else -(-vocab // 2) if cut else vocab
    noise = [(token + 0.5) / num_kept for token in range(num_kept)]
    logits = torch.full((1, vocab), -2.5).expand(num_kept, -1)

    found = draw_compiled(logits, [SamplerParams(temperature=1.0, **cut)] * num_kept, noise)

    assert found == list(range(num_kept))


def test_draws_from_a_cut_row_follow_its_distribution():
    weights = np.array([5, 1, 30, 2, 20, 8, 1, 15, 10, 8])
    num, kept = 20_000, [2, 4, 7, 8]  # 75 of 100: the fewest that reach 0.7
    logits = torch.tensor(np.log(weights), dtype=torch.float32).expand(num, -1)
    noise = np.random.default_rng(3).random(num).tolist()

    found = draw_compiled(logits, [SamplerParams(temperature=1.0, top_p=0.7)] * num, noise)

    counts = np.bincount(found, minlength=len(weights))
    expected = num * weights[kept] / weights[kept].sum()
    assert counts[kept].sum() == num
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees, p = 0.001
