"""From configuration to a running engine: which numeric form, how much memory, how many threads."""

import os
from dataclasses import dataclass
from typing import Literal

from headrace.shared.catalogue import ModelFiles
from headrace.shared.config import Config
from headrace.shared.engine.driver import PacedEngine
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with what its worker must report and put in cache keys."""

    engine: PacedEngine
    profile: str
    fingerprint: str
    kv_token_bytes: int


def build_engine(files: ModelFiles, config: Config, role: Literal["prefill", "decode"]) -> BuiltEngine:
    """Load the model and build its engine. Raises ModelError or ConfigError with one readable line."""
    if files.kind == "scripted":
        scripted = ScriptedEngine(block_tokens=config.engine.block_tokens)
        return BuiltEngine(engine=scripted, profile="scripted", fingerprint=files.fingerprint, kv_token_bytes=4)
    return _build_torch(files, config, role)


def _build_torch(files: ModelFiles, config: Config, role: Literal["prefill", "decode"]) -> BuiltEngine:
    # torch costs seconds to import; a worker that serves only `scripted` never pays for it.
    import torch

    from headrace.shared.engine.engine import TorchEngine, default_kv_bytes
    from headrace.shared.model.load import load_model

    if config.engine.deterministic:
        raise ConfigError("engine.deterministic=true is not available yet: no numeric form here is row-invariant")
    torch.set_num_threads(config.engine.threads or max(1, os.cpu_count() or 1))
    room = config.prefill if role == "prefill" else config.decode
    device = config.engine.device
    loaded = load_model(
        files,
        profile=room.profile or config.engine.profile,
        device=device,
        max_context=config.model.max_context,
    )
    engine = TorchEngine(
        loaded,
        kv_bytes=config.engine.kv_bytes or default_kv_bytes(1.0),
        block_tokens=config.engine.block_tokens,
        step_tokens=config.engine.step_tokens,
        max_batch=config.limits.max_batch,
        max_context=loaded.config.context,
    )
    return BuiltEngine(
        engine=engine,
        profile=loaded.profile,
        fingerprint=loaded.fingerprint,
        kv_token_bytes=engine.kv_token_bytes,
    )
