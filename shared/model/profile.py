"""Numeric forms of a decoder, given to it after it is built and filled; the model code knows nothing of them.

`fp32` is the oracle. `bf16` keeps weights and activations of the linear layers, keys and values in bf16; the residual
stream, norms, softmax and logits stay in fp32.
"""

from dataclasses import dataclass

import structlog
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.errors import ConfigError
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.layers.linear import Linear

log = structlog.get_logger()
_LATER = ("int4", "w8a8")


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in oneDNN's own blocked order: no reordering per call. CPU only."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.to(dtype))
        self.bias = None if linear.bias is None else linear.bias.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.packed, self.bias, "none", [], "")


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    dtype: torch.dtype
    kv_dtype: torch.dtype
    pack: bool
    head: str = "same"

    def apply(self, decoder: Decoder) -> None:
        head = decoder.head
        for module in list(decoder.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, Linear):
                    if child is head and self.head == "plain32": continue
                    dt = torch.float32 if child is head and self.head == "pack32" else self.dtype
                    if self.pack:
                        setattr(module, name, PackedLinear(child, dt))
                    else:
                        child.weight = nn.Parameter(child.weight.to(dt), requires_grad=False)


def choose_profile(name: str, device: torch.device) -> Profile:
    return {
        "fp32": Profile("fp32", torch.float32, torch.float32, False),
        "fp32p": Profile("fp32", torch.float32, torch.float32, True),
        "bf16": Profile("bf16", torch.bfloat16, torch.bfloat16, False),
        "bf16p": Profile("bf16", torch.bfloat16, torch.bfloat16, True),
        "bf16p32": Profile("bf16", torch.bfloat16, torch.bfloat16, True,"pack32"),
        "bf16pl32": Profile("bf16", torch.bfloat16, torch.bfloat16, True,"plain32"),
        "fp32pl": Profile("fp32", torch.float32, torch.float32, True,"plain32"),
    }[name]
