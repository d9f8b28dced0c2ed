"""Rotary embeddings against complex rotation and the published scaling rules."""

import math

import pytest
import torch

from headrace.shared.model.config import Rope
from headrace.shared.model.layers.rope import Rotary, frequencies, rotate

HEAD_DIM = 16


def test_rotation_turns_half_split_pairs_as_complex_numbers():
    x = torch.randn(5, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 300, 8191])

    turned = rotate(x, Rotary(Rope(theta=500.0), HEAD_DIM)(positions))

    angle = positions[:, None, None] * 500.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    expected = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), -1), rtol=0, atol=2e-3)
    torch.testing.assert_close(turned[:3], torch.cat((expected.real, expected.imag), -1)[:3], rtol=0, atol=1e-6)


def test_linear_scaling_divides_positions():
    plain, scaled = Rotary(Rope(theta=1e4), HEAD_DIM), Rotary(Rope(theta=1e4, kind="linear", factor=8.0), HEAD_DIM)

    torch.testing.assert_close(scaled(torch.tensor([40])).cos, plain(torch.tensor([5])).cos)


def test_divisors_slow_each_frequency_by_its_own():
    divisors = tuple(1.0 + i for i in range(HEAD_DIM // 2))

    slowed = frequencies(Rope(theta=1e4, divisors=divisors), HEAD_DIM)

    torch.testing.assert_close(slowed * torch.tensor(divisors), frequencies(Rope(theta=1e4), HEAD_DIM))


@pytest.mark.parametrize(("context", "expected"), [(64, (1.0, 2.0)), (65, (3.0, 4.0))])
def test_divisors_are_chosen_by_the_model_s_context(context, expected):
    """Above the original context the long ones hold, for every position alike."""
    rope = Rope(theta=1e4, divisors=(1.0, 2.0), long_divisors=(3.0, 4.0), original_context=64)

    assert rope.at(context) == Rope(theta=1e4, divisors=expected, original_context=64)


def test_elements_beyond_the_rotary_part_stand_still():
    """The halves of the part that turns lie at the beginnings of the halves of the head."""
    x = torch.randn(3, 2, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7])

    turned = rotate(x, Rotary(Rope(theta=500.0, rotary_dim=12, amplitude=1.5), HEAD_DIM)(positions))

    part, still = [*range(6), *range(8, 14)], [6, 7, 14, 15]
    alone = rotate(x[..., part], Rotary(Rope(theta=500.0), 12)(positions))
    torch.testing.assert_close(turned[..., part], 1.5 * alone)
    assert torch.equal(turned[..., still], x[..., still])


@pytest.mark.parametrize(("low", "high", "factor"), [(1.0, 4.0, 8.0), (2.0, 16.0, 32.0)])
def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones(low, high, factor):
    rope = Rope(
        theta=500_000.0, kind="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high, original_context=512
    )

    for plain, scaled in zip(
        frequencies(Rope(theta=500_000.0), 64).tolist(), frequencies(rope, 64).tolist(), strict=True
    ):
        wave = 2 * math.pi / plain
        if wave < 512 / high:
            expected = plain
        elif wave > 512 / low:
            expected = plain / factor
        else:
            smooth = (512 / wave - low) / (high - low)
            expected = (1 - smooth) * plain / factor + smooth * plain
        assert scaled == pytest.approx(expected, rel=1e-6)
