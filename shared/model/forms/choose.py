"""Which numeric form a configured name stands for.

`auto` is decided by the device, the model and the compiler, so that all workers of one kind of machine choose alike and
can use each other's blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from headrace.shared.errors import ConfigError
from headrace.shared.kernels.cores import ONE_CORE, Cores
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.forms.compiled import Compiled, why_not_compiled
from headrace.shared.model.forms.dense import Dense
from headrace.shared.model.forms.int4 import Int4
from headrace.shared.model.forms.profile import Profile
from headrace.shared.model.forms.w8a8 import W8A8, RowInvariant

FORMS: dict[str, Callable[[torch.device], Profile]] = {
    "fp32": lambda _: Dense("fp32", torch.float32),
    "bf16": lambda _: Dense("bf16", torch.bfloat16),
    "int4": Int4,
    "w8a8": lambda _: W8A8(),
}
"""Those in torch, by name; making one raises ConfigError where its device cannot compute it."""
_WITH_KERNELS = ("auto", "int4", "w8a8")
_ROW_INVARIANT = ("auto", "w8a8")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a form is chosen by."""

    name: str
    """As configured: `auto` or one of `FORMS`."""
    device: torch.device
    config: ModelConfig
    has_4bit: bool = False
    """Whether the file brings weights as 4-bit integers."""
    deterministic: bool = False
    block_tokens: int = 16
    cores: Cores = ONE_CORE


def choose_profile(wanted: Wanted) -> Profile:
    """The form to use; what was chosen and why is logged here. Raises ConfigError."""
    name = wanted.name
    if name != "auto" and name not in FORMS:
        raise ConfigError(f"engine.profile={name} is unknown; use auto, {', '.join(FORMS)}")
    if wanted.deterministic and name not in _ROW_INVARIANT:
        raise ConfigError(f"engine.profile={name} is not row-invariant; engine.deterministic=true takes auto or w8a8")
    reason: str | None = "not for this form"
    if name in _WITH_KERNELS:
        reason = why_not_compiled(wanted.device, wanted.config, wanted.block_tokens)
    profile = _compiled(wanted) if reason is None else _in_torch(wanted)
    log.info("profile_chosen", profile=profile.name, asked=name, device=str(wanted.device), kernels=reason or "used")
    return profile


def _compiled(wanted: Wanted) -> Compiled:
    if wanted.name == "w8a8" or (wanted.name == "auto" and not wanted.has_4bit):
        return Compiled("w8a8-vnni", 8, wanted.cores)
    # What a file with 4-bit blocks holds in more bits it does so for a reason; one without any is rounded on request.
    return Compiled("int4-vnni", 8 if wanted.has_4bit else 4, wanted.cores)


def _in_torch(wanted: Wanted) -> Profile:
    if wanted.deterministic:
        return RowInvariant()
    return FORMS[_fastest(wanted.device) if wanted.name == "auto" else wanted.name](wanted.device)


def _fastest(device: torch.device) -> str:
    """Without the kernels: bf16 where the device multiplies bf16 faster than fp32.

    Whole steps of SmolLM2-135M in ms, packed, on an Intel Xeon with AVX512-BF16 but without AMX; 1 | 2 threads:

    |      | 1 row   | 4 rows  | 16 rows | prefill of 128 | prefill of 600 |
    | fp32 | 49 | 33 | 58 | 39 | 96 | 59 | 241 | 135      | 1155 | 581     |
    | bf16 | 40 | 26 | 49 | 31 | 93 | 56 | 379 | 201      | 1831 | 946     |

    Few rows are bound by memory, where bf16 gains a quarter; prompts lose more than that, and fp32 is exact. On AMD
    Zen 4 the same instructions run at full width: bf16 took 30/39/58 ms per step and 110/640 ms for prompts of 100/600
    where the linear layers of fp32 alone took 52/65/85 per step.
    """
    if device.type == "cuda":
        return "bf16"
    cpu = torch.cpu.get_capabilities()
    is_fast = cpu.get("amx_bf16") or (cpu.get("avx512_bf16") and "Intel" not in str(cpu.get("cpu_name")))
    return "bf16" if is_fast else "fp32"
