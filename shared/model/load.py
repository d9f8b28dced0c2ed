"""From verified files to a decoder ready to run: read, fill, place on the device, give it its numeric form."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
import torch
from torch import Tensor

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.profile import choose_profile
from headrace.shared.model.registry import family
from headrace.shared.model.weights.fill import fill
from headrace.shared.model.weights.gguf import open_gguf
from headrace.shared.model.weights.safetensors import read_config, read_tensors

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder and what its users must know of it."""

    decoder: Decoder
    config: ModelConfig
    profile: str
    """The numeric form in effect, never `auto`."""
    kv_dtype: torch.dtype
    """Element type of the keys and values that go with this form."""
    device: torch.device
    fingerprint: str
    """sha256 of the weights on disk."""


def load_model(files: ModelFiles, *, profile: str, device: str, max_context: int) -> LoadedModel:
    """Load a model; `max_context` above 0 cuts its context.

    Raises ModelError if the files are of a kind that cannot be served, ConfigError for a profile or device that is not
    available. The decoder needs no gradients: call it under `torch.inference_mode()`.
    """
    place = _device(device)
    form = choose_profile(profile, place)
    decoder = _read(files)
    decoder.to(place).eval()
    form.apply(decoder)
    config = decoder.config
    if 0 < max_context < config.context:
        config = decoder.config = msgspec.structs.replace(config, context=max_context)
    log.info("model_loaded", model=files.name, profile=form.name, device=str(place), context=config.context)
    return LoadedModel(decoder, config, form.name, form.kv_dtype, place, files.fingerprint)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"engine.device={name} is unknown; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device=cuda, but this machine offers no CUDA device")
    return torch.device(name)


def _read(files: ModelFiles) -> Decoder:
    if files.kind == "gguf":
        return _read_gguf(files.path)
    if files.kind == "hf":
        return _read_hf(files.path)
    raise ModelError(f"model {files.name} has no weights to load")


def _read_gguf(path: Path) -> Decoder:
    file = open_gguf(path)
    arch = family("gguf", file.metadata.get("general.architecture"))
    config = arch.config_from_gguf(file)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in file.items():
            ours = arch.gguf.ours(name)
            if ours is not None:
                yield ours, arch.adapt_gguf(ours, tensor, config)

    decoder = Decoder(config)
    fill(decoder, tensors(), path.name)
    return decoder


def _read_hf(folder: Path) -> Decoder:
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

    decoder = Decoder(config)
    fill(decoder, tensors(), str(folder))
    return decoder
