"""The gated feed-forward block."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from headrace.shared.model.config import ModelConfig
from headrace.shared.model.layers.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class GatedMLP(nn.Module):
    """down(act(gate(x)) · up(x)), gate and up in one product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.intermediate
        self.activate: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        """A numeric form may bring its own."""
        self.gate_up = Linear(config.hidden, {"gate": size, "up": size}, bias=config.mlp_bias)
        self.down = Linear(size, {"down": config.hidden}, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(self.activate(gate) * up)
        return down
