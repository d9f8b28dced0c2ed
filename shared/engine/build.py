"""From configuration to a running engine: which numeric form, how much memory, how many threads."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.shared.catalogue import ModelFiles
from headrace.shared.config import Config, refuse_unavailable
from headrace.shared.engine.driver import PacedEngine
from headrace.shared.engine.scripted import ScriptedEngine
from headrace.shared.kernels.cores import Cores


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


def fair_threads(workers: Mapping[str, int], num_cores: int) -> int:
    """Cores divided by the engines that share them; never more, since OpenMP threads without a core spin.

    Two engines on two cores, SmolLM2 in fp32, decode step of 4 rows | prefill of 256 tokens, ms: one thread each
    65 | 458, two threads each 199 | 2007.
    """
    num_engines = sum(workers.get(stage, 1) for stage in ("prefill", "decode"))
    return max(1, num_cores // max(1, num_engines))


def _build_torch(files: ModelFiles, config: Config, role: Literal["prefill", "decode"]) -> BuiltEngine:
    # torch costs seconds to import; a worker that serves only `scripted` never pays for it.
    import torch

    from headrace.shared.engine.engine import TorchEngine, default_kv_bytes
    from headrace.shared.model.load import Terms, load_model

    refuse_unavailable(config)
    num_cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(config.engine.threads or fair_threads(config.up.workers, num_cores))
    room = config.prefill if role == "prefill" else config.decode
    loaded = load_model(
        files,
        Terms(
            profile=room.profile or config.engine.profile,
            device=config.engine.device,
            max_context=config.model.max_context,
            deterministic=config.engine.deterministic,
            block_tokens=config.engine.block_tokens,
            cores=_cores(config, num_cores),
        ),
    )
    engine = TorchEngine(
        loaded,
        kv_bytes=config.engine.kv_bytes or default_kv_bytes(1 / len(config.model.names)),
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


def _cores(config: Config, num_cores: int) -> Cores:
    """All cores, shared with the other engines of this instance; a number that was asked for is not shared."""
    if config.engine.threads:
        return Cores(config.engine.threads)
    data_dir = Path(config.up.data_dir).expanduser()
    return Cores(num_cores, data_dir / "cores" if data_dir.is_dir() else None)
