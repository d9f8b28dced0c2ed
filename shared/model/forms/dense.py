"""Forms whose weights stay floating-point numbers.

`fp32` is the oracle. `bf16` keeps weights and activations of the linear layers, and keys and values, in bf16; residual
stream, norms, softmax and the output head stay in fp32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.replace import replace_head, replace_linears
from headrace.shared.model.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class Dense:
    """One floating-point type for all linear layers, the head apart."""

    name: str
    dtype: torch.dtype
    wants_affine: bool = False

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.dtype

    def kv_head_size(self, head_dim: int) -> int:
        """One element each."""
        return head_dim

    def apply(self, decoder: Decoder) -> Decoder:
        """Bring a decoder that lies on its device into this form, once.

        The head stays in fp32: rounded to bf16, logits of 16 and more lie 0.125 apart and the best ones tie.
        """
        replace_linears(decoder, lambda linear: dense_linear(linear, self.dtype))
        replace_head(decoder, lambda head: dense_linear(head, torch.float32))
        return decoder


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


def dense_linear(linear: Linear, dtype: torch.dtype) -> nn.Module:
    """The same layer with its weight in `dtype`, packed where that exists."""
    has_packing: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if linear.weight.device.type == "cpu" and has_packing:
        return PackedLinear(linear, dtype)
    plain = Linear(linear.weight.shape[1], linear.parts, bias=False)
    plain.weight = nn.Parameter(linear.weight.to(dtype), requires_grad=False)
    plain.bias = None if linear.bias is None else nn.Parameter(linear.bias.to(dtype), requires_grad=False)
    return plain
