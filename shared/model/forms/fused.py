"""A decoder on integer weights, one call per step: the compiled form of `decoder.Decoder`.

Weights are the file's own integers where it has them and signed bytes elsewhere, activations signed bytes, both with a
scale per 32; sums are exact within a group and added in one order. Keys and values are such bytes, too, which lie in a
block as `csrc/attention.h` says. A row's result depends on its own sequence alone: not on its neighbours, nor on how a
prompt is cut into steps, nor on the number of threads.
"""

import ctypes
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from headrace.shared.kernels import library
from headrace.shared.kernels.cores import Cores
from headrace.shared.kernels.pack import GROUP, TILE, Packed, Weight, pack
from headrace.shared.model.config import ModelConfig
from headrace.shared.model.decoder import Decoder, DecoderLayer
from headrace.shared.model.forms.refine import heaviest_groups
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.layers.norm import HeadNorm
from headrace.shared.model.layers.rope import Rotary
from headrace.shared.model.step import KVCache, Step
from headrace.shared.model.weights.affine import quantise_rows

_REFINED = {"qkv": 4, "gate_up": 3, "down": 4, "head": 3}
"""Input groups rounded twice; each costs its share of a product. SmolLM2-135M, mean KL against fp32 on nine texts:
3, 2, 2 and 2 of them .0019, these .0016, 5, 4, 6 and 4 .0015. Spending the same share where the relative error of a
layer is largest, over all layers: .0020."""
_MOST_HEAD_DIM = 256
_MOST_HEADS_PER_KV = 16


class Span(Protocol):
    """Rows of a step that belong to one sequence."""

    @property
    def start(self) -> int:
        """First row."""

    @property
    def num_new(self) -> int:
        """Number of rows."""

    @property
    def context(self) -> int:
        """Tokens of the sequence after this step."""

    @property
    def block_table(self) -> Sequence[int]:
        """Its blocks in order."""


class PagedStep(Step, Protocol):
    """A step of paged sequences; see `engine.batch.Batch`."""

    @property
    def spans(self) -> Sequence[Span]:
        """Covering all rows."""

    @property
    def block_tokens(self) -> int:
        """Tokens per block, a multiple of 16."""


def why_not(config: ModelConfig) -> str | None:
    """What keeps a model from running in this form; None if nothing does."""
    quantised = {
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "heads x head_dim": config.heads * config.head_dim,
        "head_dim": config.head_dim,
    }
    odd = next((name for name, size in quantised.items() if size % GROUP), None)
    if odd is not None:
        return f"{odd} is not a multiple of {GROUP}"
    if config.vocab % TILE:
        return f"vocab_size is not a multiple of {TILE}"
    if config.head_dim > _MOST_HEAD_DIM or config.heads_per_kv > _MOST_HEADS_PER_KV:
        return f"more than {_MOST_HEAD_DIM} elements or {_MOST_HEADS_PER_KV} query heads per key head"
    return None


def kv_head_bytes(head_dim: int) -> int:
    """Bytes that the key, or value, of one head takes in a slot of the cache."""
    return head_dim + 4 * head_dim // GROUP


class FusedDecoder:
    """Takes the weights out of a filled decoder on the CPU, which is of no use afterwards.

    `bits` is the width of weights that the file does not bring as integers.
    """

    def __init__(self, decoder: Decoder, *, bits: Literal[4, 8], cores: Cores) -> None:
        self.config = decoder.config
        self._held: list[Tensor | Packed | ctypes.Array[library.Layer]] = []
        self._refined = self._choose_refined(decoder)
        ropes = [self._rope_table(rotary) for rotary in decoder.rotary]
        layers = (library.Layer * len(decoder.layers))()
        for index, layer in enumerate(decoder.layers):
            assert isinstance(layer, DecoderLayer)
            layers[index] = self._layer(layer, bits)
            settings = self.config.layers[index]
            layers[index].window = settings.window or 0
            rope = decoder.rope_of_layer[index]
            if rope is not None:
                layers[index].rope, layers[index].rope_dims = ropes[rope].data_ptr(), ropes[rope][0].numel()
            decoder.layers[index] = torch.nn.Identity()  # the fp32 weights are not needed twice
        self._held += [*ropes, layers]
        self._model = self._describe(decoder, layers)
        self._refined.clear()  # its keys are the layers, with their weights in fp32
        self._threads = library.Threads(cores)

    def __call__(self, step: PagedStep, cache: KVCache) -> Tensor:
        """Compute all rows, writing their keys and values to `cache`; logits [R, vocab] fp32 of the wanted rows."""
        logits = torch.empty((len(step.logit_rows), self.config.vocab))
        spans, tables = array("i"), array("i")
        for span in step.spans:
            spans.extend((span.start, span.num_new, span.context, len(tables)))
            tables.extend(span.block_table)
        keys, values = cache.layer(0)
        described = library.Step(
            num_rows=len(step.ids),
            num_logits=len(step.logit_rows),
            num_spans=len(step.spans),
            block_tokens=step.block_tokens,
            ids=step.ids.data_ptr(),
            positions=step.positions.data_ptr(),
            slots=step.slots.data_ptr(),
            logit_rows=step.logit_rows.data_ptr(),
            spans=spans.buffer_info()[0],
            tables=tables.buffer_info()[0],
            kv=keys.data_ptr(),
            kv_stride=(values.data_ptr() - keys.data_ptr()) // keys.itemsize,
            logits=logits.data_ptr(),
        )
        self._threads.forward(self._model, described)
        return logits

    def _describe(self, decoder: Decoder, layers: "ctypes.Array[library.Layer]") -> library.Model:
        config = self.config
        head = decoder.head
        assert isinstance(head, Linear)
        embedding = None
        if not config.tie:
            embedding = self._hold(decoder.embed.weight.to(torch.bfloat16).contiguous())
        return library.Model(
            hidden=config.hidden,
            intermediate=config.intermediate,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab,
            num_layers=len(config.layers),
            is_gelu=config.activation == "gelu_tanh",
            eps=config.norm_eps,
            attention_scale=config.attention_scale,
            attention_softcap=config.attention_softcap or 0.0,
            final_softcap=config.final_softcap or 0.0,
            embed_scale=config.embed_scale,
            is_tied=config.tie,
            layers=layers,
            # The head decides between close tokens: never in fewer than 8 bits of our own making.
            head=self._pack(head, 8),
            final_norm=self._floats(decoder.final_norm),
            embedding=embedding,
        )

    def _layer(self, layer: DecoderLayer, bits: Literal[4, 8]) -> library.Layer:
        attention, mlp = layer.attention, layer.mlp
        q_norm = k_norm = None
        if isinstance(attention.qk_norm, HeadNorm):
            q_norm, k_norm = (self._hold(weight.float().contiguous()) for weight in attention.qk_norm.weight)
        return library.Layer(
            qkv=self._pack(attention.qkv, bits),
            o=self._pack(attention.o, bits),
            gate_up=self._pack(mlp.gate_up, bits, paired=True),
            down=self._pack(mlp.down, bits),
            attention_norm=self._floats(layer.attention_norm),
            post_attention_norm=self._floats(layer.post_attention_norm),
            mlp_norm=self._floats(layer.mlp_norm),
            post_mlp_norm=self._floats(layer.post_mlp_norm),
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _pack(self, linear: Linear, bits: Literal[4, 8], *, paired: bool = False) -> library.Linear:
        rows = linear.affine or quantise_rows(linear.weight, bits)
        refined = self._refined.get(linear, [])
        weight = Weight(rows.q, rows.scale, rows.offset, rows.bits, linear.bias, is_paired=paired, refined=refined)
        packed = pack(weight)
        self._held.append(packed)
        return packed.linear

    @staticmethod
    def _choose_refined(decoder: Decoder) -> dict[torch.nn.Module, list[int]]:
        named = [
            (linear, _REFINED[path.rpartition(".")[2]])
            for path, linear in decoder.named_modules()
            if isinstance(linear, Linear) and path.rpartition(".")[2] in _REFINED
        ]
        groups = heaviest_groups(decoder, named)
        return {linear: some for (linear, _), some in zip(named, groups, strict=True)}

    def _rope_table(self, rotary: torch.nn.Module) -> Tensor:
        """[context, rotary dims]: cosines, then sines."""
        assert isinstance(rotary, Rotary)
        cos, sin = (table[:, 0] for table in rotary(torch.arange(self.config.context)))
        half = cos.shape[-1] // 2
        return torch.cat((cos[:, :half], sin[:, half:]), dim=-1).float().contiguous()

    def _floats(self, norm: torch.nn.Module) -> int | None:
        """Address of a norm's weight; None where there is no norm."""
        weight = getattr(norm, "weight", None)
        return None if weight is None else self._hold(weight.float().contiguous())

    def _hold(self, tensor: Tensor) -> int:
        """Address of a tensor that lives as long as this does."""
        self._held.append(tensor)
        return tensor.data_ptr()
