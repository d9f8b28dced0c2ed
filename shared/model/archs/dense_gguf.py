"""Metadata and tensor names of a GGUF file as nearly all dense families have them.

A family takes what is here and replaces what it does differently.
"""

from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor

from headrace.shared.model.archs.family import Names, gguf_fields, parse, refuse
from headrace.shared.model.archs.rope import rope_from_gguf
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.weights.gguf import GGUFFile


class GgufFields(msgspec.Struct, frozen=True, kw_only=True):
    """The keys all families share, without the architecture's name before them."""

    context_length: int
    embedding_length: int
    feed_forward_length: int
    block_count: int
    heads: int = msgspec.field(name="attention.head_count")
    kv_heads: int | None = msgspec.field(name="attention.head_count_kv", default=None)
    eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    key_length: int | None = msgspec.field(name="attention.key_length", default=None)
    window: int = msgspec.field(name="attention.sliding_window", default=0)
    theta: float = msgspec.field(name="rope.freq_base", default=10_000.0)
    rotary: int | None = msgspec.field(name="rope.dimension_count", default=None)
    scaling: str = msgspec.field(name="rope.scaling.type", default="none")
    scaling_factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    expert_count: int = 0

    @property
    def size_of_head(self) -> int:
        """Elements of one head."""
        return self.key_length or self.embedding_length // self.heads


def read_fields(file: GGUFFile, **defaults: object) -> GgufFields:
    """Read them; `defaults` are the family's. Raises ModelError."""
    fields = parse(defaults | gguf_fields(file), GgufFields, str(file.path))
    arch = file.metadata["general.architecture"]
    refuse(f"{arch}.expert_count above 0", unless=not fields.expert_count)
    return fields


def only_full(file: GGUFFile, fields: GgufFields) -> None:
    """Refuse a window in a family whose files have none."""
    arch = file.metadata["general.architecture"]
    refuse(f"{arch}.attention.sliding_window", unless=not fields.window)


def read_rope(file: GGUFFile, fields: GgufFields) -> Rope:
    """The rotary embedding of a file, over whole heads. Raises ModelError."""
    arch = file.metadata["general.architecture"]
    whole = (None, fields.size_of_head)
    refuse(f"{arch}.rope.dimension_count below the head dimension", unless=fields.rotary in whole)
    return rope_from_gguf(file, fields.theta, fields.scaling, fields.scaling_factor)


def dense_config(file: GGUFFile, fields: GgufFields, layers: Sequence[LayerConfig]) -> ModelConfig:
    """A Llama of these sizes; biases and a head of its own show in the tensors alone."""
    return ModelConfig(
        vocab=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 1,
        hidden=fields.embedding_length,
        intermediate=fields.feed_forward_length,
        heads=fields.heads,
        kv_heads=fields.kv_heads or fields.heads,
        head_dim=fields.size_of_head,
        context=fields.context_length,
        layers=tuple(layers),
        norm_eps=fields.eps,
        attention_scale=fields.size_of_head**-0.5,
        tie="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def join_pairs(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Undo the row order of q and k in files that interleave the two halves a rotary embedding pairs."""
    heads = {"q": config.heads, "k": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim / 2, half, …]
    return pairs.transpose(1, 2).reshape(tensor.shape)


def names(layer: Mapping[str, str] | None = None, ignored: frozenset[str] = frozenset()) -> Names:
    """The usual tensor names, with more or other ones within a layer."""
    return Names(
        top={"token_embd": "embed", "output_norm": "final_norm", "output": "head"},
        layer_prefix="blk.",
        layer=_LAYER | dict(layer or {}),
        ignored=frozenset({"rope_freqs.weight"}) | ignored,
    )


QK_NORMS = {"attn_q_norm": "attention.q_norm", "attn_k_norm": "attention.k_norm"}
SANDWICH_NORMS = {"post_attention_norm": "post_attention_norm", "post_ffw_norm": "post_mlp_norm"}
_LAYER = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_output": "attention.o",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}
