"""Putting other modules in the place of a decoder's linear layers."""

from collections.abc import Callable

from torch import nn

from headrace.shared.model.decoder import Decoder
from headrace.shared.model.layers.linear import Linear

_LARGE_HEAD_BYTES = 256 << 20
"""A tied head takes a form as a copy beside the embedding table; above this size that costs more than it saves."""


def replace_linears(decoder: Decoder, make: Callable[[Linear], nn.Module]) -> None:
    """Replace every linear layer of the stack, the head apart."""
    for module in list(decoder.layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                setattr(module, name, make(child))


def replace_head(decoder: Decoder, make: Callable[[Linear], nn.Module]) -> None:
    """Replace the output head, unless it is tied to an embedding table too large to be kept twice."""
    head = decoder.head
    assert isinstance(head, Linear), "a decoder takes one form, once"
    if decoder.config.tie and head.weight.numel() * head.weight.itemsize > _LARGE_HEAD_BYTES:
        head.affine = None
    else:
        decoder.head = make(head)
