"""Tiny random models, a bench that runs sequences on them, and the catalogue's real models."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.shared.catalogue import ModelFiles, resolve
from headrace.shared.config import Model
from headrace.shared.engine.batch import Row, build_batch
from headrace.shared.engine.storage import KVStorage
from headrace.shared.errors import ModelError
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.decoder import Decoder

BLOCK_TOKENS = 4
BLOCKS_PER_SEQUENCE = 12
VOCAB = 61


def llama_config(**changes: object) -> ModelConfig:
    """Grouped heads, head_dim other than hidden / heads, tied."""
    fields: dict[str, object] = {
        "vocab": VOCAB,
        "hidden": 24,
        "intermediate": 40,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 8,
        "context": 48,
        "layers": (LayerConfig(rope=Rope(theta=10_000.0)),) * 3,
        "norm_eps": 1e-5,
        "attention_scale": 8**-0.5,
        "tie": True,
    }
    return ModelConfig(**(fields | changes))


def gemma_config(**changes: object) -> ModelConfig:
    """Every switch Gemma 3 turns, plus biases and softcaps; the window is shorter than the tests' sequences."""
    near, far = LayerConfig(rope=Rope(theta=10_000.0), window=5), LayerConfig(rope=Rope(theta=1e6, kind="linear", factor=8.0))
    fields: dict[str, object] = {
        "layers": (near, near, far),
        "activation": "gelu_tanh",
        "embed_scale": 24**0.5,
        "qk_norm": True,
        "sandwich_norms": True,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "final_softcap": 30.0,
        "tie": False,
    }
    return llama_config(**(fields | changes))


CONFIGS = {
    "llama": llama_config(),
    "gemma": gemma_config(),
    "softcapped": gemma_config(attention_softcap=5.0),
}


def randomize(tensors: dict[str, Tensor], seed: int = 0) -> None:
    """Fill parameters so that each one shows in the logits: plain initial values hide biases and norms."""
    rng = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(tensors.items()):
        noise = torch.randn(tensor.shape, generator=rng)
        if tensor.dim() > 1:
            tensor.copy_(noise / tensor.shape[-1] ** 0.5)
        else:
            tensor.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise)


class Bench:
    """Sequences on one decoder; their blocks lie scattered and out of order."""

    def __init__(self, decoder: Decoder, num_sequences: int = 8, dtype: torch.dtype = torch.float32) -> None:
        self.decoder = decoder
        num_blocks = num_sequences * BLOCKS_PER_SEQUENCE
        self.storage = KVStorage(decoder.config, num_blocks, BLOCK_TOKENS, dtype, torch.device("cpu"))
        # What was never written must never count.
        for index in range(len(decoder.config.layers)):
            for tensor in self.storage.layer(index):
                tensor.fill_(torch.nan)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(7)).tolist()
        self.tables = [order[i::num_sequences] for i in range(num_sequences)]
        self.lengths = [0] * num_sequences

    def step(self, chunks: dict[int, list[int]], *, wanted: bool = True) -> Tensor:
        """Feed new ids to sequences; logits after the last id of each, in the order given, if wanted."""
        rows = [Row(ids, self.lengths[i], self.tables[i], wanted) for i, ids in chunks.items()]
        with torch.inference_mode():
            logits = self.decoder(build_batch(rows, BLOCK_TOKENS, torch.device("cpu")), self.storage)
        for i, ids in chunks.items():
            self.lengths[i] += len(ids)
        return logits

    def keys(self, sequence: int, layer: int) -> Tensor:
        """Stored keys of a sequence in order, [tokens, kv_heads, head_dim]."""
        slots = [self.tables[sequence][p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in range(self.lengths[sequence])]
        return self.storage.layer(layer)[0][slots]


@pytest.fixture(params=CONFIGS)
def decoder(request) -> Decoder:
    """One random decoder per set of switches."""
    decoder = Decoder(CONFIGS[request.param])
    randomize(dict(decoder.named_parameters()))
    return decoder


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def make_decoder() -> Callable[..., Decoder]:
    """A random decoder with these switches; `gemma` starts from Gemma's."""

    def make(*, gemma: bool = False, **changes: object) -> Decoder:
        decoder = Decoder(gemma_config(**changes) if gemma else llama_config(**changes))
        randomize(dict(decoder.named_parameters()))
        return decoder

    return make


@pytest.fixture
def randomized() -> Callable[[dict[str, Tensor]], None]:
    return randomize


@pytest.fixture
def ids() -> list[int]:
    return torch.randint(0, VOCAB, (23,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="session")
def catalogue_model() -> Callable[[str], ModelFiles]:
    """A model of the catalogue, which must have been pulled."""

    def find(name: str) -> ModelFiles:
        try:
            return resolve(name, Model().dir, check=False)
        except ModelError as error:
            pytest.fail(f"{error}; pull it, or leave these tests out with -m 'not model'")

    return find


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the reference ids."""
    return Path(__file__).parents[2] / "golden"
