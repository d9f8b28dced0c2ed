"""The Llama family: Llama 2 and 3, SmolLM2."""

from collections.abc import Mapping

import msgspec
from torch import Tensor

from headrace.shared.model.archs.family import Family, Names, gguf_fields, parse, refuse
from headrace.shared.model.archs.rope import RopeFields, rope_from_gguf, rope_from_hf
from headrace.shared.model.config import LayerConfig, ModelConfig
from headrace.shared.model.weights.gguf import GGUFFile


class _Hf(msgspec.Struct, frozen=True, kw_only=True):
    """What `config.json` tells; defaults as transformers has them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


class _Gguf(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys `llama.*` tell."""

    context_length: int
    embedding_length: int
    feed_forward_length: int
    block_count: int
    heads: int = msgspec.field(name="attention.head_count")
    kv_heads: int | None = msgspec.field(name="attention.head_count_kv", default=None)
    eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    key_length: int | None = msgspec.field(name="attention.key_length", default=None)
    theta: float = msgspec.field(name="rope.freq_base", default=10_000.0)
    rotary: int | None = msgspec.field(name="rope.dimension_count", default=None)
    scaling: str = msgspec.field(name="rope.scaling.type", default="none")
    scaling_factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    window: int = msgspec.field(name="attention.sliding_window", default=0)
    expert_count: int = 0


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """Translate a `config.json`."""
    hf = parse(raw, _Hf, "config.json")
    refuse(f"hidden_act {hf.hidden_act!r} of a Llama", unless=hf.hidden_act == "silu")
    head_dim = hf.head_dim or hf.hidden_size // hf.num_attention_heads
    rope = rope_from_hf(hf.rope_parameters or hf.rope_scaling, hf.rope_theta)
    return ModelConfig(
        vocab=hf.vocab_size,
        hidden=hf.hidden_size,
        intermediate=hf.intermediate_size,
        heads=hf.num_attention_heads,
        kv_heads=hf.num_key_value_heads or hf.num_attention_heads,
        head_dim=head_dim,
        context=hf.max_position_embeddings,
        layers=(LayerConfig(rope=rope),) * hf.num_hidden_layers,
        norm_eps=hf.rms_norm_eps,
        attention_scale=head_dim**-0.5,
        tie=hf.tie_word_embeddings,
        qkv_bias=hf.attention_bias,
        out_bias=hf.attention_bias,
        mlp_bias=hf.mlp_bias,
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Translate the metadata of a `llama` file; biases and a head of its own show in the tensors alone."""
    gguf = parse(gguf_fields(file), _Gguf, str(file.path))
    head_dim = gguf.key_length or gguf.embedding_length // gguf.heads
    refuse("llama.expert_count above 0", unless=not gguf.expert_count)
    refuse("llama.attention.sliding_window", unless=not gguf.window)
    refuse("llama.rope.dimension_count below the head dimension", unless=gguf.rotary in (None, head_dim))
    rope = rope_from_gguf(file, gguf.theta, gguf.scaling, gguf.scaling_factor)
    return ModelConfig(
        vocab=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 1,
        hidden=gguf.embedding_length,
        intermediate=gguf.feed_forward_length,
        heads=gguf.heads,
        kv_heads=gguf.kv_heads or gguf.heads,
        head_dim=head_dim,
        context=gguf.context_length,
        layers=(LayerConfig(rope=rope),) * gguf.block_count,
        norm_eps=gguf.eps,
        attention_scale=head_dim**-0.5,
        tie="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def adapt_gguf(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Undo the row order of q and k, and round to bf16.

    `llama` files interleave the two halves a rotary embedding pairs. Llama checkpoints are bf16, and so are the weights
    behind the reference ids of SmolLM2-135M: rounded, log-probabilities agree with the reference to 5e-5; unrounded
    they differ by up to 0.05 and three of ten rows leave the reference ids. Both numeric profiles then compute on the
    very same weights.
    """
    tensor = tensor.bfloat16().float()
    heads = {"q": config.heads, "k": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim / 2, half, …]
    return pairs.transpose(1, 2).reshape(tensor.shape)


FAMILY = Family(
    hf=Names(
        top={"model.embed_tokens": "embed", "model.norm": "final_norm", "lm_head": "head"},
        layer_prefix="model.layers.",
        layer={
            "input_layernorm": "attention_norm",
            "self_attn.q_proj": "attention.q",
            "self_attn.k_proj": "attention.k",
            "self_attn.v_proj": "attention.v",
            "self_attn.o_proj": "attention.o",
            "post_attention_layernorm": "mlp_norm",
            "mlp.gate_proj": "mlp.gate",
            "mlp.up_proj": "mlp.up",
            "mlp.down_proj": "mlp.down",
        },
        ignored=frozenset({"self_attn.rotary_emb.inv_freq"}),
    ),
    gguf=Names(
        top={"token_embd": "embed", "output_norm": "final_norm", "output": "head"},
        layer_prefix="blk.",
        layer={
            "attn_norm": "attention_norm",
            "attn_q": "attention.q",
            "attn_k": "attention.k",
            "attn_v": "attention.v",
            "attn_output": "attention.o",
            "ffn_norm": "mlp_norm",
            "ffn_gate": "mlp.gate",
            "ffn_up": "mlp.up",
            "ffn_down": "mlp.down",
        },
        ignored=frozenset({"rope_freqs.weight"}),
    ),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
    adapt_gguf=adapt_gguf,
)
