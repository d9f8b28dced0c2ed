"""A row's result is the same bits alone and beside any others: of single products, and of whole steps."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.shared.errors import ConfigError
from headrace.shared.model.forms.exact import MOST_KEYS, attend_exactly, gelu_exactly, silu_exactly
from headrace.shared.model.forms.int4 import Int4Linear
from headrace.shared.model.forms.w8a8 import CoarseLinear, FineLinear, RowInvariant
from headrace.shared.model.layers.attention import attend
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.weights.affine import quantise_rows

NUM_SEQUENCES = 32
VOCAB = 61


def _normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def linear():
    linear = Linear(576, {"a": 192}, bias=True)
    for parameter in linear.parameters():
        parameter.copy_(_normal(*parameter.shape))
    return linear


@pytest.fixture(params=["int4", "coarse", "fine"])
def rounded(request, linear):
    """A linear layer in each of the integer forms."""
    if request.param == "int4":
        return Int4Linear(quantise_rows(linear.weight, 4), linear.bias)
    return {"coarse": CoarseLinear, "fine": FineLinear}[request.param](linear)


def test_a_product_is_the_same_alone_and_among_31_others(rounded):
    x = _normal(NUM_SEQUENCES, 576) * _normal(NUM_SEQUENCES, 1, seed=1).exp()

    together = rounded(x)

    for num_rows in (1, 2, 3, 7, 16, 31):
        for start in range(0, NUM_SEQUENCES - num_rows + 1, num_rows):
            rows = slice(start, start + num_rows)
            assert torch.equal(rounded(x[rows].clone()), together[rows])


@pytest.fixture
def steady(decoder, make_bench):
    """Fresh sequences on the row-invariant form of each decoder."""
    RowInvariant().apply(decoder)
    return lambda: make_bench(decoder, num_sequences=NUM_SEQUENCES, dtype=torch.bfloat16)


def test_a_sequence_is_the_same_alone_and_among_31_others(steady):
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(NUM_SEQUENCES)]
    crowd = steady()
    first = crowd.step(dict(enumerate(prompts)))
    second = crowd.step({i: [i] for i in range(NUM_SEQUENCES)})

    for i in (0, 5, 31):
        lone = steady()
        assert torch.equal(lone.step({i: prompts[i]})[0], first[i])
        assert torch.equal(lone.step({i: [i]})[0], second[i])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_neither_neighbours_nor_the_cut_of_a_prompt_show(steady, seed):
    rng = random.Random(seed)
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(2, 40))]
    whole = steady()
    expected = whole.step({0: prompt})[0]

    bench, done = steady(), 0
    while done < len(prompt):
        cut = rng.randint(1, len(prompt) - done)
        chunks = {i: [rng.randrange(VOCAB)] for i in range(1, NUM_SEQUENCES) if rng.random() < 0.3}
        chunks |= {0: prompt[done : done + cut]}
        shuffled = rng.sample(sorted(chunks), len(chunks))
        found = bench.step({i: chunks[i] for i in shuffled})[shuffled.index(0)]
        done += cut

    assert torch.equal(found, expected)
    for layer in range(3):
        assert torch.equal(bench.keys(0, layer), whole.keys(0, layer))


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("has_bias", [True, False])
def test_exact_attention_is_attention(softcap, has_bias):
    q, k, v = _normal(2, 3, 4, 16), _normal(2, 3, 50, 16, seed=1), _normal(2, 3, 50, 16, seed=2)
    bias = torch.zeros(2, 1, 4, 50)
    bias[:, :, 1:, 30:] = -torch.inf
    args = (q, k, v, bias if has_bias else None, 0.3, softcap)

    torch.testing.assert_close(attend_exactly(*args), attend(*args), rtol=0, atol=5e-4)


def test_exact_activations_are_the_activations():
    x = torch.linspace(-100, 100, 4001)

    torch.testing.assert_close(silu_exactly(x), F.silu(x))
    torch.testing.assert_close(gelu_exactly(x), F.gelu(x, approximate="tanh"), rtol=1e-4, atol=1e-6)


def test_a_context_too_long_for_exact_sums_is_refused(make_decoder):
    decoder = make_decoder(context=MOST_KEYS + 1)

    with pytest.raises(ConfigError, match=r"model\.max_context"):
        RowInvariant().apply(decoder)
