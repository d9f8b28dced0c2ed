"""From verified files to a decoder ready to run: read, fill, place on the device, give it its numeric form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
import torch
from torch import Tensor

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.kernels.cores import ONE_CORE, Cores
from headrace.shared.kernels.memory import return_freed_memory
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.choose import Wanted, choose_profile
from headrace.shared.model.registry import family
from headrace.shared.model.weights.affine import attach_affine
from headrace.shared.model.weights.blocks import AffineRows
from headrace.shared.model.weights.fill import fill
from headrace.shared.model.weights.gguf import open_gguf
from headrace.shared.model.weights.safetensors import read_config, read_tensors

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder and what its users must know of it."""

    decoder: Callable[..., Tensor]
    """Computes a step: (batch, storage) → logits."""
    config: ModelConfig
    profile: str
    """The numeric form in effect, never `auto`."""
    kv_dtype: torch.dtype
    """Element type of the keys and values that go with this form."""
    kv_head_size: int
    """Elements that a head's key, or value, takes in a slot."""
    device: torch.device
    fingerprint: str
    """sha256 of the weights on disk, marked where the same weights are computed with otherwise."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a model is to be loaded."""

    profile: str = "auto"
    device: str = "auto"
    max_context: int = 0
    """Above 0: cut the context to so many tokens."""
    deterministic: bool = False
    """Demand a row-invariant form."""
    block_tokens: int = 16
    cores: Cores = ONE_CORE


def load_model(files: ModelFiles, terms: Terms) -> LoadedModel:
    """Load a model.

    Raises ModelError if the files are of a kind that cannot be served, ConfigError for a profile or device that is not
    available. The decoder needs no gradients: call it under `torch.inference_mode()`.
    """
    place = _device(terms.device)
    checkpoint = open_checkpoint(files)
    config = checkpoint.config
    if 0 < terms.max_context < config.context:
        config = msgspec.structs.replace(config, context=terms.max_context)
    form = choose_profile(
        Wanted(
            name=terms.profile,
            device=place,
            config=config,
            has_4bit=checkpoint.has_4bit,
            deterministic=terms.deterministic,
            block_tokens=terms.block_tokens,
            cores=terms.cores,
        )
    )
    decoder = checkpoint.read(with_affine=form.wants_affine, config=config)
    decoder.to(place).eval()
    compute = form.apply(decoder)
    del decoder
    return_freed_memory()
    log.info("model_loaded", model=files.name, profile=form.name, device=str(place), context=config.context)
    fingerprint = files.fingerprint + ("+short" if _is_short(config) else "")
    return LoadedModel(
        decoder=compute,
        config=config,
        profile=form.name,
        kv_dtype=form.kv_dtype,
        kv_head_size=form.kv_head_size(config.head_dim),
        device=place,
        fingerprint=fingerprint,
    )


def _is_short(config: ModelConfig) -> bool:
    """Whether the context was cut so far that other rotary factors hold, and with them other keys."""
    ropes = [layer.rope for layer in config.layers if layer.rope is not None and layer.rope.long_divisors]
    return any(rope.at(config.context).divisors == rope.divisors for rope in ropes)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"engine.device={name} is unknown; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device=cuda, but this machine offers no CUDA device")
    return torch.device(name)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights on disk whose configuration is known."""

    config: ModelConfig
    has_4bit: bool
    """Whether some weight lies there as 4-bit integers."""
    _read: Callable[[ModelConfig, bool], Decoder]

    def read(self, *, with_affine: bool, config: ModelConfig | None = None) -> Decoder:
        """The weights in fp32 on the CPU, in no numeric form yet; with quantised blocks' integers where asked for.

        `config` is the checkpoint's own with its context cut, if it is cut. Raises ModelError.
        """
        return self._read(config or self.config, with_affine)


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Look into a model's files without reading its weights. Raises ModelError."""
    if files.kind == "gguf":
        return _open_gguf(files.path)
    if files.kind == "hf":
        return _open_hf(files.path)
    raise ModelError(f"model {files.name} has no weights to load")


def _open_gguf(path: Path) -> Checkpoint:
    file = open_gguf(path)
    arch = family("gguf", file.metadata.get("general.architecture"))
    config = arch.config_from_gguf(file)
    theirs = {ours: name for name in file.tensors if (ours := arch.gguf.ours(name)) is not None}

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for ours, name in theirs.items():
            yield ours, arch.adapt_gguf(ours, file.read(name), config)

    def affine(ours: str) -> AffineRows | None:
        rows = file.read_affine(theirs[ours]) if ours in theirs else None
        return rows and rows.map(lambda tensor: arch.order_gguf(ours, tensor, config))

    def read(config: ModelConfig, with_affine: bool) -> Decoder:
        decoder = Decoder(config)
        fill(decoder, tensors(), path.name)
        if with_affine:
            attach_affine(decoder, affine)
        return decoder

    return Checkpoint(config, file.has_4bit(), read)


def _open_hf(folder: Path) -> Checkpoint:
    raw = read_config(folder)
    names = raw.get("architectures")
    arch = family("hf", names[0] if isinstance(names, list) and names else None)
    if raw.get("quantization_config"):
        raise ModelError(f"{folder}: config.json: quantization_config is not supported")
    config = arch.config_from_hf(raw)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in read_tensors(folder):
            ours = arch.hf.ours(name)
            # Some tied checkpoints store the head a second time.
            if ours is not None and not (ours == "head.weight" and config.tie):
                yield ours, tensor

    def read(config: ModelConfig, _: bool) -> Decoder:
        decoder = Decoder(config)
        fill(decoder, tensors(), str(folder))
        return decoder

    return Checkpoint(config, has_4bit=False, _read=read)
