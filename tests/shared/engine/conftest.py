"""Engines small enough to check by hand: the contract tests run over both kinds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from headrace.shared.engine import Engine, SamplerParams, SequenceSpec, StepOutput
from headrace.shared.engine.engine import TorchEngine
from headrace.shared.engine.scheduler import Scheduler
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.engine.sequence import Sequence
from headrace.shared.engine.storage import KVStorage
from headrace.shared.messages import Script, ScriptStep
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope

BLOCK_TOKENS = 4
VOCAB = 97
CONFIG = ModelConfig(
    vocab=VOCAB,
    hidden=4,
    intermediate=4,
    heads=1,
    kv_heads=1,
    head_dim=2,
    context=64,
    layers=(LayerConfig(rope=Rope(theta=10000.0)),),
    norm_eps=1e-5,
    attention_scale=1.0,
)


class SumDecoder(nn.Module):
    """Logits are exact integers made of every token and position it finds in the KV of a sequence.

    A wrong slot, block table, position or a token computed twice changes them; nothing else does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.arange(1, VOCAB + 1) * 7919)
        self.poison: int | None = None
        """A sequence that begins with this id gets no numbers."""
        self.rows_per_step: list[int] = []
        self.last_logits = torch.empty(0, VOCAB)

    def forward(self, batch, storage: KVStorage) -> Tensor:
        self.rows_per_step.append(len(batch.ids))
        keys, values = storage.layer(0)
        keys[batch.slots, 0] = torch.stack([batch.ids, batch.positions], -1).float()
        values[batch.slots, 0] = 0.0
        by_row = {span.start + span.num_new - 1: span for span in batch.spans}
        rows = [self._logits(by_row[row], batch.block_tokens, keys) for row in batch.logit_rows.tolist()]
        self.last_logits = torch.stack(rows) if rows else torch.empty(0, VOCAB)
        return self.last_logits.clone()

    def _logits(self, span, block_tokens: int, keys: Tensor) -> Tensor:
        slots = [span.block_table[p // block_tokens] * block_tokens + p % block_tokens for p in range(span.context)]
        ids, positions = keys[slots, 0].long().unbind(-1)
        if ids[0] == self.poison:
            return torch.full((VOCAB,), torch.nan)
        total = ((ids + 3) * (positions + 1) * (positions + 11)).sum()
        return ((total * self.factors) % 10007 % 61).float() / 8


class SchedulerBench:
    """A scheduler with a pretended model, which generates the length of the sequence so far; keeps what came out."""

    def __init__(self, num_blocks=64, step_tokens=16, max_batch=8):
        self.now = 0.0
        self.row_s = 0.0
        self.prompt_token_s = 0.0
        """What a step takes, per generated row and per prompt token; nothing unless a test says so."""
        self.scheduler = Scheduler(
            num_blocks,
            block_tokens=BLOCK_TOKENS,
            step_tokens=step_tokens,
            max_batch=max_batch,
            clock=lambda: self.now,
        )
        self.imported = []
        self.tokens = {}
        self.computed = {}
        self.ended = {}

    def add(self, name, length=3, max_new=4, blocks=(), first_block=0, **fields):
        spec = SequenceSpec(id=name, prompt=range(length), max_new=max_new, **fields)
        sequence = Sequence(spec, block_tokens=BLOCK_TOKENS, max_context=256)
        sequence.bring(blocks, first_block)
        self.scheduler.add(sequence)
        return sequence

    def step(self):
        self.scheduler.admit(lambda block, payload: self.imported.append((block, payload)))
        plan = self.scheduler.plan()
        self.scheduler.check()
        done = [s for s, num in plan if num == s.num_pending and not s.is_prefill]
        rows = sum(s.num_pending == 1 for s, _ in plan)
        self.now += self.row_s * rows + self.prompt_token_s * (sum(num for _, num in plan) - rows)
        outputs = self.scheduler.commit(plan, {s.id: [len(s.tokens)] for s in done})
        self.scheduler.check()
        for output in outputs:
            self.tokens.setdefault(output.id, []).extend(output.tokens)
            if output.cause:
                assert output.id not in self.ended
                self.ended[output.id] = output
        for sequence, num in plan:
            self.computed[sequence.id] = self.computed.get(sequence.id, 0) + num
        return {sequence.id: num for sequence, num in plan}

    def run(self, num_steps=1000, release=True):
        for _ in range(num_steps):
            if not self.scheduler.has_work():
                return
            self.step()
            for name in list(self.ended) if release else ():
                self.scheduler.release(name)
        raise AssertionError("no end")


@pytest.fixture(scope="session")
def make_bench() -> type[SchedulerBench]:
    return SchedulerBench


@dataclass
class LoadedSum:
    """What `load_model` would give."""

    decoder: SumDecoder = field(default_factory=SumDecoder)
    config: ModelConfig = CONFIG
    profile: str = "fp32"
    kv_dtype: torch.dtype = torch.float32
    kv_head_size: int = CONFIG.head_dim
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    fingerprint: str = "sum"


@pytest.fixture
def loaded() -> LoadedSum:
    return LoadedSum()


@pytest.fixture
def make_torch(loaded) -> Callable[..., TorchEngine]:
    def make(num_blocks: int = 64, step_tokens: int = 32, max_batch: int = 8, max_context: int = 64) -> TorchEngine:
        kv_bytes = num_blocks * KVStorage.block_bytes_for(CONFIG, BLOCK_TOKENS, torch.float32)
        return TorchEngine(
            loaded,
            kv_bytes=kv_bytes,
            block_tokens=BLOCK_TOKENS,
            step_tokens=step_tokens,
            max_batch=max_batch,
            max_context=max_context,
        )

    return make


@pytest.fixture(params=["torch", "scripted"])
def make_engine(request, make_torch) -> Callable[..., Engine]:
    """Engines of 4 tokens a block; `num_blocks`, `max_batch` and `max_context` to taste."""

    def make_scripted(num_blocks: int = 64, max_batch: int = 8, max_context: int = 64) -> ScriptedEngine:
        return ScriptedEngine(
            block_tokens=BLOCK_TOKENS,
            max_context=max_context,
            max_batch=max_batch,
            kv_tokens=num_blocks * BLOCK_TOKENS,
        )

    return make_torch if request.param == "torch" else make_scripted


@pytest.fixture
def make_spec() -> Callable[..., SequenceSpec]:
    """A sequence whose tokens differ from position to position in either engine."""
    script = Script(choices=(tuple(ScriptStep(ids=(i,)) for i in range(32, 96)),))
    plain = SequenceSpec(id="a", prompt=(1, 2, 3), max_new=8, sampling=SamplerParams(temperature=0), script=script)

    def make(**changes: object) -> SequenceSpec:
        return replace(plain, **changes)

    return make


@pytest.fixture
def drive() -> Callable[[Engine], dict[str, list[StepOutput]]]:
    """Step until there is no work, checking the accounting each time; outputs by sequence."""

    def run(engine: Engine, num_steps: int = 2000) -> dict[str, list[StepOutput]]:
        outputs: dict[str, list[StepOutput]] = {}
        for _ in range(num_steps):
            if not engine.has_work():
                return outputs
            for output in engine.step():
                outputs.setdefault(output.id, []).append(output)
            engine.check()
        raise AssertionError("the engine does not come to an end")

    return run


@pytest.fixture
def generate(drive) -> Callable[..., list[int]]:
    """Run one sequence alone in an engine and return the new tokens."""

    def run(engine: Engine, spec: SequenceSpec, **kwargs: object) -> list[int]:
        engine.add(spec, **kwargs)
        tokens = [token for output in drive(engine).get(spec.id, []) for token in output.tokens]
        engine.release(spec.id)
        return tokens

    return run
