"""Tokens of the row-invariant forms: the same alone and among 31 others, greedy and sampled, in any chunks."""

import pytest
import torch

from headrace.shared.engine import SamplerParams, SequenceSpec
from headrace.shared.engine.engine import TorchEngine
from headrace.shared.kernels import library
from headrace.shared.kernels.cores import Cores
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.compiled import Compiled
from headrace.shared.model.forms.w8a8 import RowInvariant
from headrace.shared.model.load import LoadedModel

NUM_SEQUENCES = 32
BLOCK_TOKENS = 16
VOCAB = 64
SAMPLINGS = (
    SamplerParams(temperature=0),
    SamplerParams(temperature=1.0),
    SamplerParams(temperature=1.3, top_p=0.9, presence=0.5),
    SamplerParams(temperature=0.8, top_k=20, repetition=1.2),
)


CONFIG = ModelConfig(
    vocab=VOCAB, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=32, context=48, norm_eps=1e-5, tie=True,
    layers=(LayerConfig(rope=Rope(theta=1e4)),) * 2, attention_scale=32**-0.5,
)  # fmt: skip


def random_decoder() -> Decoder:
    decoder = Decoder(CONFIG)
    rng = torch.Generator().manual_seed(5)
    for parameter in decoder.parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 1 + 0.3 * noise)
    return decoder


FORMS = {"w8a8-exact": RowInvariant()}
if library.is_available():
    FORMS["w8a8-vnni"] = Compiled("w8a8-vnni", 8, Cores(2))


@pytest.fixture(params=FORMS)
def make_engine(request):
    """Engines on one row-invariant decoder; `step_tokens` says how its prompts are cut."""
    form = FORMS[request.param]
    loaded = LoadedModel(
        decoder=form.apply(random_decoder()),
        config=CONFIG,
        profile=form.name,
        kv_dtype=form.kv_dtype,
        kv_head_size=form.kv_head_size(CONFIG.head_dim),
        device=torch.device("cpu"),
        fingerprint="f00d",
    )

    def make(step_tokens: int) -> TorchEngine:
        sizes = {"kv_bytes": 4 << 20, "block_tokens": BLOCK_TOKENS, "max_batch": NUM_SEQUENCES, "max_context": 48}
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
