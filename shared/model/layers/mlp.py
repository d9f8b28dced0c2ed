"""The gated feed-forward block."""

import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.config import ModelConfig
from headrace.shared.model.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(act(gate(x)) · up(x)), gate and up in one product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.intermediate
        self.is_silu = config.activation == "silu"
        self.gate_up = Linear(config.hidden, {"gate": size, "up": size}, bias=config.mlp_bias)
        self.down = Linear(size, {"down": config.hidden}, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        gate = F.silu(gate) if self.is_silu else F.gelu(gate, approximate="tanh")
        down: Tensor = self.down(gate * up)
        return down
