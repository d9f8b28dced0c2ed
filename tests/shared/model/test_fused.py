"""The compiled decoder: equal to the plain one with rounded inputs, and every row's result its own."""

import pytest
import torch
from torch import nn

from headrace.shared.engine.batch import Row, build_batch
from headrace.shared.engine.storage import KVStorage
from headrace.shared.kernels import library
from headrace.shared.kernels.cores import Cores
from headrace.shared.model.config import LayerConfig, ModelConfig, Rope
from headrace.shared.model.decoder import Decoder
from headrace.shared.model.forms.fused import FusedDecoder, kv_head_bytes, why_not
from headrace.shared.model.forms.refine import _rounding_errors
from headrace.shared.model.layers.attention import attend
from headrace.shared.model.layers.linear import Linear
from headrace.shared.model.weights.affine import quantise_rows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no kernels on this machine")

CPU = torch.device("cpu")
ROPE = Rope(theta=1e4)
PLAIN = ModelConfig(
    vocab=96, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=32, context=256,
    layers=(LayerConfig(rope=ROPE),) * 3, norm_eps=1e-5, attention_scale=32**-0.5, tie=True,
)  # fmt: skip


def changed(**changes):
    return ModelConfig(**{name: getattr(PLAIN, name) for name in PLAIN.__struct_fields__} | changes)


CONFIGS = {
    "llama": PLAIN,
    "biases": changed(qkv_bias=True, out_bias=True, mlp_bias=True, tie=False),
    "gemma2": changed(
        sandwich_norms=True, activation="gelu_tanh", attention_softcap=5.0, final_softcap=3.0, embed_scale=8.0,
        layers=(LayerConfig(rope=ROPE, window=5), LayerConfig(rope=ROPE)),
    ),
    "gemma3": changed(
        sandwich_norms=True, qk_norm=True,
        layers=(LayerConfig(rope=ROPE, window=20), LayerConfig(rope=Rope(theta=1e6))),
    ),
    "no position": changed(layers=(LayerConfig(rope=ROPE), LayerConfig(rope=None))),
    "many heads": changed(heads=9, kv_heads=3, head_dim=96, hidden=288, attention_scale=0.1),
}  # fmt: skip


class RoundedInput(nn.Module):
    """A linear layer given what the kernels give it: groups rounded to bytes, the refined ones with their rest."""

    def __init__(self, linear, refined):
        super().__init__()
        self.linear = linear
        self.refined = refined

    def forward(self, x):
        errors = _rounding_errors(x)
        rest = errors[:, self.refined] - _rounding_errors(errors[:, self.refined].flatten(1))
        rounded = x.view(errors.shape) - errors
        rounded[:, self.refined] += rest
        return self.linear(rounded.view(x.shape))


def random_decoder(config, bits):
    decoder = Decoder(config)
    rng = torch.Generator().manual_seed(5)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        is_matrix = parameter.dim() == 2 and "qk_norm" not in name
        parameter.copy_(noise * parameter.shape[-1] ** -0.5 if is_matrix else 1 + 0.3 * noise)
    for name, module in decoder.named_modules():
        if isinstance(module, Linear):
            module.affine = quantise_rows(module.weight, 8 if name == "head" else bits)
            module.weight.copy_(module.affine.values())
    return decoder


def both(config, bits, threads=2):
    """The compiled decoder and the plain one that should equal it."""
    fused = FusedDecoder(random_decoder(config, bits), bits=8, cores=Cores(threads))
    plain = random_decoder(config, bits)
    refined = FusedDecoder._choose_refined(plain)
    for module in list(plain.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                setattr(module, name, RoundedInput(child, refined.get(child, [])))
    for layer in plain.layers:
        layer.attention.attend = attend_to_rounded
    return fused, plain


def attend_to_rounded(q, k, v, *rest):
    """Attention over keys and values as the cache keeps them."""
    k, v = (x - _rounding_errors(x.flatten(0, -2)).view(x.shape) for x in (k, v))
    return attend(q, k, v, *rest)


class Run:
    """Feeds sequences to a decoder; sequence i has its own blocks."""

    def __init__(self, decoder, config, block_tokens=16):
        self.decoder = decoder
        self.size = block_tokens
        is_fused = isinstance(decoder, FusedDecoder)
        dtype, head_size = (
            (torch.int8, kv_head_bytes(config.head_dim)) if is_fused else (torch.float32, config.head_dim)
        )
        self.storage = KVStorage(config, 32 * 16 // block_tokens, block_tokens, dtype, CPU, head_size=head_size)

    def step(self, *parts):
        """(sequence, first position, ids) of each row → logits, one row each."""
        per = 64 // self.size
        rows = [Row(ids, first, list(range(i * per, (i + 1) * per)), wants_logits=True) for i, first, ids in parts]
        with torch.inference_mode():
            return self.decoder(build_batch(rows, self.size, CPU), self.storage)


def tokens(num, seed=0):
    return torch.randint(0, 96, (num,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_equals_the_plain_decoder_with_rounded_inputs(name, bits):
    config = CONFIGS[name]
    fused, plain = (Run(decoder, config) for decoder in both(config, bits))
    prompt, other = tokens(37), tokens(21, seed=1)

    for step in ([(0, 0, prompt)], [(1, 0, other), (0, 37, [3])], [(0, 38, [4]), (1, 21, [5])]):
        ours, theirs = fused.step(*step), plain.step(*step)
        assert theirs.std() > 0.1
        # Where sums differ in the last bit, a byte may round the other way, and the next layers carry it on.
        assert (ours - theirs).abs().max() < 0.03 * theirs.abs().max()
        assert (ours - theirs).abs().mean() < 0.006 * theirs.abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_is_the_same_bits_alone_among_others_and_in_any_cut(name):
    config = CONFIGS[name]
    fused = FusedDecoder(random_decoder(config, 4), bits=8, cores=Cores(2))
    prompt = tokens(50)
    alone = Run(fused, config)
    want = [alone.step((0, 0, prompt)), alone.step((0, 50, [7]))]

    crowd = Run(fused, config)
    others = [(i, 0, tokens(3 * i + 1, seed=i)) for i in range(1, 8)]
    crowd.step((0, 0, prompt[:1]), *others)
    crowd.step(*[(i, len(ids), [i]) for i, _, ids in others], (0, 1, prompt[1:18]))
    cut = crowd.step((0, 18, prompt[18:]))
    among = crowd.step(*[(i, len(ids) + 1, [9]) for i, _, ids in others], (0, 50, [7]))

    assert torch.equal(cut, want[0])
    assert torch.equal(among[-1:], want[1])


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_number_of_threads_changes_no_bit(threads):
    one = Run(FusedDecoder(random_decoder(PLAIN, 4), bits=8, cores=Cores(2)), PLAIN)
    several = Run(FusedDecoder(random_decoder(PLAIN, 4), bits=8, cores=Cores(threads)), PLAIN)
    step = [(i, 0, tokens(30 + i, seed=i)) for i in range(8)]

    assert torch.equal(one.step(*step), several.step(*step))


def test_larger_blocks_give_the_same_bits():
    fused = FusedDecoder(random_decoder(PLAIN, 8), bits=8, cores=Cores(1))
    small, large = Run(fused, PLAIN), Run(fused, PLAIN, block_tokens=32)

    for step in ([(0, 0, tokens(40)), (1, 0, tokens(7))], [(1, 7, [1]), (0, 40, [2])]):
        assert torch.equal(small.step(*step), large.step(*step))


def test_what_lies_in_slots_nobody_wrote_is_not_looked_at():
    fused = FusedDecoder(random_decoder(PLAIN, 8), bits=8, cores=Cores(1))
    clean, dirty = Run(fused, PLAIN), Run(fused, PLAIN)
    for layer in range(len(PLAIN.layers)):
        for tensor in dirty.storage.layer(layer):
            tensor.fill_(-1)  # as a scale: not a number

    for step in ([(0, 0, tokens(21))], [(0, 21, [1])]):
        assert torch.equal(clean.step(*step), dirty.step(*step))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": 48, "head_dim": 32}, "hidden_size"),
        ({"intermediate": 80}, "intermediate_size"),
        ({"head_dim": 16}, "head_dim"),
        ({"vocab": 97}, "vocab_size"),
        ({"head_dim": 288}, "256 elements"),
        ({"heads": 17, "kv_heads": 1}, "16 query heads"),
    ],
)
def test_a_shape_it_cannot_compute_is_named(change, reason):
    assert why_not(PLAIN) is None
    assert reason in (why_not(changed(**change)) or "")
