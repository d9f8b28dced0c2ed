"""Rotary settings as files spell them, for all families."""

import math
from collections.abc import Mapping

import msgspec

from headrace.shared.errors import ModelError
from headrace.shared.model.archs.family import parse, refuse
from headrace.shared.model.config import Rope
from headrace.shared.model.weights.gguf import GGUFFile

_DEFAULT_THETA = 10_000.0


class RopeFields(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_scaling` of older HF files and `rope_parameters` of newer ones."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    attention_factor: float | None = None


class _Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What a `config.json` says of rotary embeddings outside those two."""

    rope_theta: float | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    partial_rotary_factor: float | None = None
    original_max_position_embeddings: int | None = None


def read_rope(raw: Mapping[str, object], theta: float = _DEFAULT_THETA) -> RopeFields:
    """The settings of a `config.json` with one rotary embedding, in either spelling; `theta` is its family's default.

    What stands inside `rope_parameters` or `rope_scaling` goes before what stands beside it, but for the original
    context: transformers decides so.
    """
    beside = parse(raw, _Beside, "config.json")
    by_type = raw.get("rope_parameters")
    if isinstance(by_type, Mapping):
        refuse("rope_parameters by layer type", unless=not any(isinstance(v, Mapping) for v in by_type.values()))
    fields = beside.rope_parameters or beside.rope_scaling or RopeFields()
    return msgspec.structs.replace(
        fields,
        rope_theta=fields.rope_theta or beside.rope_theta or theta,
        partial_rotary_factor=fields.partial_rotary_factor or beside.partial_rotary_factor,
        original_max_position_embeddings=(
            beside.original_max_position_embeddings or fields.original_max_position_embeddings
        ),
    )


def rope_from_hf(fields: RopeFields | None, theta: float = _DEFAULT_THETA) -> Rope:
    """One embedding over whole heads; `theta` holds unless the fields have one. Raises ModelError."""
    fields = fields or RopeFields()
    theta = fields.rope_theta or theta
    kind = fields.rope_type or fields.type or "default"
    refuse("partial_rotary_factor other than 1", unless=fields.partial_rotary_factor in (None, 1.0))
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=fields.factor or 1.0)
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
        factor=fields.factor or 1.0,
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=original,
    )


def longrope(
    theta: float, short: tuple[float, ...], long: tuple[float, ...], original: int, amplitude: float, rotary: int | None
) -> Rope:
    """The embedding of a model stretched beyond `original`; raises ModelError if factors are missing."""
    if not short or len(short) != len(long):
        raise ModelError("rope_type longrope needs short_factor and long_factor of one length")
    return Rope(
        theta=theta,
        divisors=short,
        long_divisors=long,
        original_context=original,
        amplitude=amplitude,
        rotary_dim=rotary,
    )


def longrope_amplitude(factor: float, original: int) -> float:
    """What turned elements are multiplied by in a model whose context is `factor` times the original one."""
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))


def rope_from_gguf(file: GGUFFile, theta: float, kind: str, factor: float) -> Rope:
    """Llama 3 files carry their divisors as the tensor `rope_freqs.weight`. Raises ModelError."""
    refuse(f"rope.scaling.type {kind!r}", unless=kind in ("none", "linear"))
    divisors = divisors_of(file, "rope_freqs.weight")
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor, divisors=divisors)
    return Rope(theta=theta, divisors=divisors)


def divisors_of(file: GGUFFile, name: str) -> tuple[float, ...]:
    """The divisors a file carries as a tensor; empty if it has none."""
    return tuple(file.read(name).tolist()) if name in file.tensors else ()
