"""The form `int4`: 4-bit integers with a scale and an offset per 32 inputs, activations in bf16.

The 4-bit blocks of a GGUF file map onto it exactly. Tensors that the file holds in more bits stay in bf16, for rounding
them would cost what the file paid to keep. Weights that come with no 4-bit block at all are rounded, since whoever asks
for this form then asks for just that.
"""

import structlog
import torch
from torch import Tensor, nn

from headrace.shared.errors import ConfigError
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.dense import dense_linear
from headrace.shared.model.forms.replace import replace_head, replace_linears
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.weights.affine import quantise_rows
from headrace.shared.model.weights.blocks import GROUP, AffineRows

_ROW_MULTIPLE = 16
"""The kernel computes so many rows of a weight at once."""

log = structlog.get_logger()


class Int4:
    """4-bit linear layers where the shape allows; bf16 elsewhere, the head in fp32."""

    name = "int4"
    kv_dtype = torch.bfloat16
    wants_affine = True

    def __init__(self, device: torch.device) -> None:
        if device.type != "cpu":
            raise ConfigError(f"engine.profile=int4 has no kernel for device {device.type}; use bf16 there")

    def kv_head_size(self, head_dim: int) -> int:
        """One element each."""
        return head_dim

    def apply(self, decoder: Decoder) -> Decoder:
        """Bring a decoder that lies on its device into this form, once."""
        linears = [module for module in decoder.layers.modules() if isinstance(module, Linear)]
        is_rounded = not any(linear.affine is not None and linear.affine.bits == 4 for linear in linears)
        replace_linears(decoder, lambda linear: _int4_linear(linear, is_rounded=is_rounded))
        replace_head(decoder, lambda head: dense_linear(head, torch.float32))
        num_int4 = sum(isinstance(module, Int4Linear) for module in decoder.modules())
        log.info("int4_applied", num_int4=num_int4, num_bf16=len(linears) - num_int4, rounded=is_rounded)
        return decoder


class Int4Linear(nn.Module):
    """x · Wᵀ (+ b) with W kept in 4 bits. CPU only; the operators are private to torch, whose version is pinned."""

    def __init__(self, affine: AffineRows, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(affine.q.int(), 1)  # noqa: SLF001
        # The kernel's value is (q - 8) * scale + zero.
        pair = torch.stack((affine.scale, affine.offset + 8.0 * affine.scale), dim=-1)  # [rows, groups, 2]
        self.scale_zero = pair.transpose(0, 1).bfloat16().contiguous()
        self.bias = None if bias is None else bias.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] → [..., rows] in bf16."""
        rows = x.bfloat16().reshape(-1, x.shape[-1])
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scale_zero)  # noqa: SLF001
        out = out.view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def _int4_linear(linear: Linear, *, is_rounded: bool) -> nn.Module:
    rows, inputs = linear.weight.shape
    if rows % _ROW_MULTIPLE == 0 and inputs % GROUP == 0:
        if is_rounded:
            return Int4Linear(quantise_rows(linear.weight, 4), linear.bias)
        if linear.affine is not None and linear.affine.bits == 4:
            return Int4Linear(linear.affine, linear.bias)
    return dense_linear(linear, torch.bfloat16)
