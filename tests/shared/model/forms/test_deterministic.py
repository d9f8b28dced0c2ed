"""Tokens of the row-invariant form in torch: the same alone and among 31 others, greedy and sampled, in any chunks."""

import pytest
import torch

from headrace.shared.engine import SamplerParams, SequenceSpec
from headrace.shared.engine.engine import TorchEngine
from headrace.shared.model.forms.w8a8 import RowInvariant
from headrace.shared.model.load import LoadedModel

NUM_SEQUENCES = 32
BLOCK_TOKENS = 4
VOCAB = 61
SAMPLINGS = (
    SamplerParams(temperature=0),
    SamplerParams(temperature=1.0),
    SamplerParams(temperature=1.3, top_p=0.9, presence=0.5),
    SamplerParams(temperature=0.8, top_k=20, repetition=1.2),
)


@pytest.fixture
def make_engine(decoder):
    """Engines on one row-invariant decoder; `step_tokens` says how its prompts are cut."""
    form = RowInvariant()
    loaded = LoadedModel(form.apply(decoder), decoder.config, form.name, form.kv_dtype, torch.device("cpu"), "f00d")

    def make(step_tokens: int) -> TorchEngine:
        sizes = {"kv_bytes": 1 << 20, "block_tokens": BLOCK_TOKENS, "max_batch": NUM_SEQUENCES, "max_context": 48}
        return TorchEngine(loaded, step_tokens=step_tokens, **sizes)

    return make


def specs() -> list[SequenceSpec]:
    """Sequences of all lengths and samplings."""
    rng = torch.Generator().manual_seed(0)
    return [
        SequenceSpec(
            id=f"s{i}",
            prompt=torch.randint(0, VOCAB, (1 + i,), generator=rng).tolist(),
            max_new=12,
            sampling=SAMPLINGS[i % len(SAMPLINGS)],
        )
        for i in range(NUM_SEQUENCES)
    ]


def run(engine: TorchEngine, batch: list[SequenceSpec]) -> dict[str, list[int]]:
    """New tokens by sequence."""
    tokens: dict[str, list[int]] = {spec.id: [] for spec in batch}
    for spec in batch:
        engine.add(spec)
    while engine.has_work():
        for output in engine.step():
            tokens[output.id] += output.tokens
    return tokens


@pytest.mark.parametrize("step_tokens", [33, 256])
def test_tokens_are_the_same_alone_and_among_31_others(make_engine, step_tokens):
    together = run(make_engine(step_tokens), specs()[::-1])

    for spec in specs()[::3]:
        assert run(make_engine(256), [spec])[spec.id] == together[spec.id]
    sampled = [tuple(together[spec.id]) for spec in specs() if spec.sampling.temperature]
    assert len(set(sampled)) == len(sampled)
