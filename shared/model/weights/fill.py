"""Put named tensors into a decoder: every parameter exactly once, nothing silently left over.

Knows the decoder's own names (`layers.3.attention.q.weight`); families translate theirs into these.
"""

from collections.abc import Iterable, Iterator

import structlog
import torch
from torch import Tensor

from headrace.shared.errors import ModelError
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.decoder import Decoder, Embedding
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.layers.norm import HeadNorm, RMSNorm

_SHOWN = 20
log = structlog.get_logger()


@torch.no_grad()
def fill(decoder: Decoder, tensors: Iterable[tuple[str, Tensor]], source: str) -> None:
    """Copy `tensors` into the decoder's parameters.

    Tensors nothing asks for are logged. Raises ModelError if a parameter is missing or a shape is wrong; `source` names
    the file in it.
    """
    views = weight_views(decoder)
    unexpected: list[str] = []
    for name, tensor in _apart(decoder, tensors, source):
        view = views.pop(name, None)
        if view is None:
            unexpected.append(name)
        else:
            _check_shape(source, name, tensor, view)
            view.copy_(in_our_order(name, tensor, decoder.config))
    if views:
        raise ModelError(f"{source}: {len(views)} missing tensors: {_shown(sorted(views))}")
    if unexpected:
        log.warning("weights_unexpected", source=source, num_tensors=len(unexpected), names=unexpected[:_SHOWN])
    if decoder.config.norm_plus_one:
        for module in decoder.modules():
            if isinstance(module, RMSNorm | HeadNorm):
                module.weight.add_(1.0)


def weight_views(decoder: Decoder) -> dict[str, Tensor]:
    """Every parameter under its own name, the parts of joined projections as separate views."""
    views: dict[str, Tensor] = {}
    for path, module in decoder.named_modules():
        parent = path.rpartition(".")[0]
        prefix = f"{parent}." if parent else ""
        if isinstance(module, Embedding | RMSNorm):
            views[f"{path}.weight"] = module.weight
        elif isinstance(module, HeadNorm):
            views[f"{prefix}q_norm.weight"], views[f"{prefix}k_norm.weight"] = module.weight
        elif isinstance(module, Linear) and not (module is decoder.head and decoder.config.tie):
            for part, rows in module.part_rows().items():
                views[f"{prefix}{part}.weight"] = module.weight[rows]
                if module.bias is not None:
                    views[f"{prefix}{part}.bias"] = module.bias[rows]
    return views


def _apart(decoder: Decoder, tensors: Iterable[tuple[str, Tensor]], source: str) -> Iterator[tuple[str, Tensor]]:
    """Cut tensors given under the name of a joined projection (`attention.qkv`) into its parts."""
    joined = {
        path: module for path, module in decoder.named_modules() if isinstance(module, Linear) and len(module.parts) > 1
    }
    for name, tensor in tensors:
        path, _, kind = name.rpartition(".")
        whole = getattr(joined.get(path), kind, None)
        if whole is None:
            yield name, tensor
            continue
        _check_shape(source, name, tensor, whole)
        parent = path.rpartition(".")[0]
        for part, rows in joined[path].part_rows().items():
            yield f"{parent}.{part}.{kind}", tensor[rows]


def _check_shape(source: str, name: str, tensor: Tensor, place: Tensor) -> None:
    if tensor.shape != place.shape:
        raise ModelError(
            f"{source}: {name} has shape {list(tensor.shape)}, the configuration implies {list(place.shape)}"
        )


def in_our_order(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Where only a part of each head turns, put its second half into the second half of the head.

    Queries and keys are reordered alike, so their products stay as they are.
    """
    path = name.split(".")
    heads = {"q": config.heads, "k": config.kv_heads, "q_norm": 1, "k_norm": 1}.get(path[-2])
    rope = config.layers[int(path[1])].rope if heads else None
    if heads is None or rope is None or rope.rotary_dim is None:
        return tensor
    size, turning = config.head_dim // 2, rope.rotary_dim // 2
    still = torch.arange(2 * turning, config.head_dim).view(2, size - turning)
    order = torch.cat((torch.arange(2 * turning).view(2, turning), still), dim=-1).flatten()
    return tensor.view(heads, config.head_dim, -1)[:, order].view(tensor.shape)


def _shown(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
