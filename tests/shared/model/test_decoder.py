"""One forward for everything: chunks, mixed batches and moved blocks give what the whole prompt alone gives."""

import pytest
import torch

from headrace.shared.model.config import LayerConfig, Rope

TOLERANCE = {"rtol": 0, "atol": 1e-5}


@pytest.mark.parametrize("split", range(1, 23))
def test_a_prompt_cut_anywhere_gives_the_logits_of_the_whole(decoder, make_bench, ids, split):
    bench = make_bench(decoder)
    whole = bench.step({0: ids})

    bench.step({1: ids[:split]})
    cut = bench.step({1: ids[split:]})

    torch.testing.assert_close(cut, whole, **TOLERANCE)
    for layer in range(len(decoder.config.layers)):
        torch.testing.assert_close(bench.keys(1, layer), bench.keys(0, layer), **TOLERANCE)


def test_token_by_token_gives_the_logits_of_the_whole(decoder, make_bench, ids):
    bench = make_bench(decoder)
    for token in ids:
        last = bench.step({0: [token]})

    torch.testing.assert_close(last, bench.step({1: ids}), **TOLERANCE)


def test_a_prompt_longer_than_a_tile_gives_the_logits_of_small_chunks(make_decoder, make_bench, monkeypatch, ids):
    """Queries are attended to in tiles; each must see all the keys before it and none after."""
    decoder = make_decoder(gemma=True)
    whole = make_bench(decoder).step({0: ids})

    monkeypatch.setattr("headrace.shared.engine.batch._CHUNK_QUERIES", 4)

    torch.testing.assert_close(make_bench(decoder).step({0: ids}), whole, **TOLERANCE)


@pytest.mark.parametrize("together", [1, 256])
def test_a_mixed_batch_gives_each_sequence_what_it_gets_alone(decoder, make_bench, monkeypatch, ids, together):
    """Prompts, chunks on top of a prefix and single tokens at different lengths, in no particular order."""
    monkeypatch.setattr("headrace.shared.engine.batch._ALWAYS_TOGETHER", together)
    prefixes = {0: [], 1: ids[:20], 2: ids[:9], 3: ids[5:7], 4: [], 5: ids[3:22], 6: ids[:3]}
    chunks = {0: ids[:13], 1: [7], 2: ids[9:16], 3: [11], 4: [5], 5: [1], 6: [ids[3]]}

    bench, alone = make_bench(decoder), make_bench(decoder)
    for i, prefix in prefixes.items():
        if prefix:
            bench.step({i: prefix})
            alone.step({i: prefix})
    mixed = bench.step(chunks)
    separate = torch.cat([alone.step({i: chunk}) for i, chunk in chunks.items()])

    torch.testing.assert_close(mixed, separate, **TOLERANCE)
    assert mixed.argmax(-1).tolist() == separate.argmax(-1).tolist()
    assert mixed.std() > 0.3


def test_blocks_moved_to_another_storage_continue_bit_for_bit(decoder, make_bench, ids):
    here, there = make_bench(decoder), make_bench(decoder, num_sequences=5)
    here.step({2: ids})
    there.lengths[4] = here.lengths[2]
    for source, target in zip(here.tables[2], there.tables[4], strict=True):
        there.storage.import_block(target, here.storage.export_block(source))

    assert torch.equal(there.step({4: [9]}), here.step({2: [9]}))


def test_a_step_without_wanted_logits_computes_keys_alone(make_decoder, make_bench, ids):
    decoder = make_decoder()
    bench = make_bench(decoder)

    logits = bench.step({0: ids[:-1]}, wanted=False)

    assert logits.shape == (0, decoder.config.vocab)
    torch.testing.assert_close(bench.step({0: ids[-1:]}), bench.step({1: ids}), **TOLERANCE)


def test_a_window_hides_what_is_older(make_decoder, make_bench, ids):
    """With all layers sliding, a token further back than layers · window cannot show; within a window it does."""
    near = make_decoder(gemma=True).config.layers[0]
    decoder = make_decoder(gemma=True, layers=(near,))
    old, recent = [(ids[0] + 1) % 61, *ids[1:]], [*ids[:-3], (ids[-3] + 1) % 61, *ids[-2:]]

    logits = make_bench(decoder).step({0: ids, 1: old, 2: recent})

    torch.testing.assert_close(logits[1], logits[0], **TOLERANCE)
    assert (logits[2] - logits[0]).abs().max() > 0.01


def test_without_rotary_embeddings_only_the_set_of_older_tokens_counts(make_decoder, make_bench, ids):
    decoder = make_decoder(layers=(LayerConfig(rope=None),))
    shuffled = [*reversed(ids[:-1]), ids[-1]]

    logits = make_bench(decoder).step({0: ids, 1: shuffled, 2: [ids[0], *ids]})

    torch.testing.assert_close(logits[1], logits[0], **TOLERANCE)
    assert (logits[2] - logits[0]).abs().max() > 0.01


def test_a_model_cut_to_its_original_context_turns_by_the_short_divisors(make_decoder, make_bench, ids):
    """Whatever the length of the sequence: nothing may change for keys that are already stored."""
    short, long = (1.0, 1.5, 2.0, 2.5), (2.0, 4.0, 8.0, 16.0)
    stretched = LayerConfig(rope=Rope(theta=500.0, divisors=short, long_divisors=long, original_context=16))

    for context, divisors in ((16, short), (17, long)):
        plain = LayerConfig(rope=Rope(theta=500.0, divisors=divisors))
        expected = make_bench(make_decoder(layers=(plain,))).step({0: ids[:9]})
        got = make_bench(make_decoder(layers=(stretched,), context=context)).step({0: ids[:9]})
        assert torch.equal(got, expected)
