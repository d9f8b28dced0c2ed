"""Rotary settings as files spell them, for all families."""

import msgspec

from headrace.shared.errors import ModelError
from headrace.shared.model.archs.family import refuse
from headrace.shared.model.config import Rope
from headrace.shared.model.weights.gguf import GGUFFile

_DEFAULT_THETA = 10_000.0


class RopeFields(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_scaling` of older HF files and `rope_parameters` of newer ones."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0


def rope_from_hf(fields: RopeFields | None, theta: float | None) -> Rope:
    """`theta` is the field beside `rope_scaling`; the one inside goes first. Raises ModelError."""
    fields = fields or RopeFields()
    theta = fields.rope_theta or theta or _DEFAULT_THETA
    kind = fields.rope_type or fields.type or "default"
    refuse("partial_rotary_factor other than 1", unless=fields.partial_rotary_factor == 1.0)
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=fields.factor)
    if kind != "llama3":
        raise ModelError(f"rope_type {kind!r} is not supported; supported are default, linear and llama3")
    low, high, original = fields.low_freq_factor, fields.high_freq_factor, fields.original_max_position_embeddings
    if low is None or high is None or original is None or high <= low:
        raise ModelError(
            "rope_type llama3 needs low_freq_factor < high_freq_factor and original_max_position_embeddings"
        )
    return Rope(
        theta=theta,
        kind="llama3",
        factor=fields.factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=original,
    )


def rope_from_gguf(file: GGUFFile, theta: float, kind: str, factor: float) -> Rope:
    """Llama 3 files carry their divisors as the tensor `rope_freqs.weight`. Raises ModelError."""
    refuse(f"rope.scaling.type {kind!r}", unless=kind in ("none", "linear"))
    divisors: list[float] = file.read("rope_freqs.weight").tolist() if "rope_freqs.weight" in file.tensors else []
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor, divisors=tuple(divisors))
    return Rope(theta=theta, divisors=tuple(divisors))
