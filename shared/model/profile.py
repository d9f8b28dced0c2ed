"""Numeric forms of a decoder, given to it after it is built and filled; the model code knows nothing of them.

`fp32` is the oracle. `bf16` keeps weights and activations of the linear layers, and keys and values, in bf16; residual
stream, norms, softmax and the output head stay in fp32. `auto` is one of the two, chosen by the device alone, so that
all workers of one kind of machine choose alike and can use each other's blocks.
"""

from dataclasses import dataclass

import structlog
import torch
from torch import Tensor, nn

from headrace.shared.errors import ConfigError
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.layers.linear import Linear

_TO_COME = ("int4", "w8a8")
_LARGE_HEAD_BYTES = 256 << 20
"""A tied head is packed as a copy beside the embedding table; above this size the copy costs more than it saves."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Profile:
    """One numeric form."""

    name: str
    dtype: torch.dtype
    """Of the linear layers' weights and activations, the head apart."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.dtype

    def apply(self, decoder: Decoder) -> None:
        """Bring a decoder that lies on its device into this form, once.

        The head stays in fp32: rounded to bf16, logits of 16 and more lie 0.125 apart and the best ones tie.
        """
        for module in list(decoder.layers.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, Linear):
                    setattr(module, name, _linear(child, self.dtype))
        head = decoder.head
        assert isinstance(head, Linear), "a decoder takes one form, once"
        if not decoder.config.tie or head.weight.numel() * head.weight.itemsize <= _LARGE_HEAD_BYTES:
            decoder.head = _linear(head, torch.float32)


PROFILES = {"fp32": Profile("fp32", torch.float32), "bf16": Profile("bf16", torch.bfloat16)}


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in oneDNN's blocked order, which plain products make anew on every call.

    CPU only. The two operators are private to torch, whose version is pinned. SmolLM2-135M, all linear layers of one
    decode step of 1/4/16 rows, 2 threads, ms, plain → packed: fp32 9/18/44 → 13/11/27, bf16 10/18/43 → 6/13/37.
    """

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.to(dtype))  # noqa: SLF001
        self.bias = None if linear.bias is None else linear.bias.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] → [..., rows], in the weight's type."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x.to(self.dtype), self.packed, self.bias, "none", [], ""
        )
        return out


def choose_profile(name: str, device: torch.device) -> Profile:
    """The form named in the configuration; `auto` is decided and logged here. Raises ConfigError."""
    if name in _TO_COME:
        raise ConfigError(f"engine.profile={name} is not available yet; use auto, fp32 or bf16")
    if name != "auto" and name not in PROFILES:
        raise ConfigError(f"engine.profile={name} is unknown; use auto, fp32 or bf16")
    profile = PROFILES[_fastest(device) if name == "auto" else name]
    log.info("profile_chosen", profile=profile.name, asked=name, device=str(device))
    return profile


def _fastest(device: torch.device) -> str:
    """bf16 where the device multiplies bf16 faster than fp32.

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


def _linear(linear: Linear, dtype: torch.dtype) -> nn.Module:
    """The same layer with its weight in `dtype`, packed where that exists."""
    has_packing: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if linear.weight.device.type == "cpu" and has_packing:
        return PackedLinear(linear, dtype)
    plain = Linear(linear.weight.shape[1], linear.parts, bias=False)
    plain.weight = nn.Parameter(linear.weight.to(dtype), requires_grad=False)
    plain.bias = None if linear.bias is None else nn.Parameter(linear.bias.to(dtype), requires_grad=False)
    return plain
