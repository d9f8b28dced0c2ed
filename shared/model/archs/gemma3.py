"""The text models of the Gemma 3 family: five layers with a sliding window to each one without."""

from collections.abc import Mapping, Sequence

import msgspec

from headrace.shared.model.archs import dense_gguf, dense_hf, gemma2
from headrace.shared.model.archs.family import Family, gguf_fields, parse
from headrace.shared.model.archs.rope import RopeFields, rope_from_hf
from headrace.shared.model.archs.windows import FULL, SLIDING, every_nth_full, windows
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.weights.gguf import GGUFFile

_PATTERN = 6
"""Every sixth layer sees everything, unless a file says otherwise."""
_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_LAYERS_OF_27B = 62


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's `config.json` tells."""

    rope_theta: float = _THETA
    rope_local_base_freq: float = _LOCAL_THETA
    rope_scaling: RopeFields | None = None
    rope_parameters: dict[str, RopeFields] | None = None
    """Newer files: by layer type."""
    sliding_window_pattern: int | None = None
    old_pattern: int | None = msgspec.field(name="_sliding_window_pattern", default=None)


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What only this family's GGUF files tell."""

    pattern: int = msgspec.field(name="attention.sliding_window_pattern", default=_PATTERN)
    local_theta: float = msgspec.field(name="rope.freq_base_swa", default=_LOCAL_THETA)


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    fields = gemma2.read_fields(raw, 131_072)
    gemma, own = parse(raw, gemma2.GemmaFields, "config.json"), parse(raw, _Own, "config.json")
    by_type = own.rope_parameters or {}
    full = rope_from_hf(by_type.get(FULL) or own.rope_scaling, own.rope_theta)
    sliding = rope_from_hf(by_type.get(SLIDING), own.rope_local_base_freq)
    pattern = own.sliding_window_pattern or own.old_pattern or _PATTERN
    types = gemma.layer_types or every_nth_full(fields.num_hidden_layers, pattern)
    seen = windows(types, fields.num_hidden_layers, gemma.sliding_window)
    return gemma2.gemma_from_hf(fields, gemma, _layers(seen, sliding, full), qk_norm=True)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `gemma3` file, whose norms carry their one already."""
    fields = dense_gguf.read_fields(file, **{"attention.key_length": 256, "rope.freq_base": _THETA})
    gemma = parse(gguf_fields(file), gemma2.GemmaKeys, str(file.path))
    own = parse(gguf_fields(file), _Keys, str(file.path))
    full = dense_gguf.read_rope(file, fields)
    seen = windows(every_nth_full(fields.block_count, own.pattern), fields.block_count, fields.window)
    layers = _layers(seen, Rope(theta=own.local_theta), full)
    return msgspec.structs.replace(
        gemma2.as_gemma(dense_gguf.dense_config(file, fields, layers)),
        attention_scale=gemma2.gguf_scale(fields, _LAYERS_OF_27B),
        qk_norm=True,
        final_softcap=gemma.final_softcap,
    )


def _layers(windows: Sequence[int | None], sliding: Rope, full: Rope) -> list[LayerConfig]:
    return [LayerConfig(rope=full if window is None else sliding, window=window) for window in windows]


FAMILY = Family(
    hf=dense_hf.names(dense_hf.QK_NORMS | dense_hf.SANDWICH_NORMS),
    gguf=dense_gguf.names(dense_gguf.QK_NORMS | dense_gguf.SANDWICH_NORMS),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
)
