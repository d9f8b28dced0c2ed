"""Softmax attention with and without a softcap, against the formula."""

import pytest
import torch

from headrace.shared.model.layers.attention import attend


@pytest.mark.parametrize("softcap", [None, 0.5, 50.0])
def test_attention_follows_the_formula(softcap):
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=rng) for n in (4, 6, 6))
    bias = torch.zeros(2, 1, 4, 6).masked_fill(torch.rand(2, 1, 4, 6, generator=rng) < 0.3, -torch.inf)

    scores = torch.einsum("bhmd,bhnd->bhmn", q, k) * 0.7
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    expected = torch.einsum("bhmn,bhnd->bhmd", torch.softmax(scores + bias, -1), v)

    torch.testing.assert_close(attend(q, k, v, bias, 0.7, softcap), expected, rtol=0, atol=1e-6)
