"""The tokenizer over the `tokenizers` library, and the scripted one: one interface."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from headrace.shared.text.scripted import ScriptedTokenizer
from headrace.shared.text.tokenizer import HfTokenizer, Tokenizer


@pytest.fixture(params=["scripted", "byte_level"])
def tokenizer(request, byte_tokenizer) -> Tokenizer:
    """Both implementations."""
    return ScriptedTokenizer() if request.param == "scripted" else byte_tokenizer


class TestContract:
    """What holds for every tokenizer."""

    def test_text_survives_the_round_trip(self, tokenizer):
        text = "the naïve 讲🙂\n\u2028"

        assert tokenizer.decode(tokenizer.encode(text, add_special=True), skip_special=False) == text

    def test_token_bytes_join_to_the_text(self, tokenizer):
        ids = tokenizer.encode("讲🙂 th", add_special=False)

        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "讲🙂 th"

    def test_ids_outside_the_vocabulary_have_no_bytes(self, tokenizer):
        for token in (-1, tokenizer.vocab_size, 2**31, 2**40):
            assert tokenizer.token_bytes(token) == b""
            assert tokenizer.token_text(token) == ""

    def test_every_id_has_bytes_and_a_spelling(self, tokenizer):
        assert all(tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size))
        assert all(tokenizer.token_text(token) for token in range(tokenizer.vocab_size))

    def test_special_ids_are_skipped_on_request(self, tokenizer):
        ids = [*tokenizer.encode("a", add_special=False), tokenizer.eos_id]

        assert tokenizer.decode(ids, skip_special=True) == "a"
        assert tokenizer.decode(ids, skip_special=False) == "a</s>"

    def test_invalid_bytes_decode_to_replacements(self, tokenizer):
        whole = tokenizer.encode("🙂", add_special=False)

        assert "\ufffd" in tokenizer.decode(whole[:-1], skip_special=True)

    def test_lone_surrogates_are_refused(self, tokenizer):
        with pytest.raises(UnicodeEncodeError):
            tokenizer.encode("a\ud800", add_special=False)

    def test_special_tokens_in_text_are_text_when_escaped(self, tokenizer):
        special = tokenizer.token_text(max(tokenizer.special_ids))
        text = f"a{special}b"

        parity = tokenizer.encode(text, add_special=False)
        escaped = tokenizer.encode(text, add_special=False, escape=True)

        assert max(tokenizer.special_ids) in parity
        assert not tokenizer.special_ids & set(escaped)
        assert tokenizer.decode(escaped, skip_special=True) == text

    def test_only_sealed_special_tokens_are_special_when_escaped(self, tokenizer):
        token = max(tokenizer.special_ids)
        special = tokenizer.token_text(token)
        sealed = tokenizer.guard.seal(f"{tokenizer.guard.hide(special)}{special}")

        ids = tokenizer.encode(sealed, add_special=False, escape=True)

        assert ids[-1] == token
        assert token not in ids[:-1]
        assert tokenizer.decode(ids[:-1], skip_special=False) == special


def test_escaping_changes_nothing_in_text_without_special_tokens(byte_tokenizer):
    text = "the truth — 讲"

    assert byte_tokenizer.encode(text, add_special=False, escape=True) == byte_tokenizer.encode(text, add_special=False)


def test_scripted_markers_are_single_ids_and_chatml_is_not():
    tokenizer = ScriptedTokenizer()

    assert tokenizer.encode("<think>x</think>", add_special=True) == [258, ord("x"), 259]
    assert tokenizer.encode("<|im_end|>", add_special=True) == list(b"<|im_end|>")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (256, 257, 262)


@given(st.text())
def test_scripted_ids_are_the_bytes(text):
    tokenizer = ScriptedTokenizer()

    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text


def words(decoder, **options) -> HfTokenizer:
    """A tokenizer of three words with the given decoder."""
    vocab = {"<unk>": 0, "▁I": 1, "▁am": 2, "▁here": 3, "##ing": 4, "go": 5, "<s>": 6, "a": 7}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>"])
    return HfTokenizer(tokenizer, bos="<s>", **options)


def test_spaces_between_words_are_kept_token_by_token():
    tokenizer = words(decoders.Metaspace())

    assert [tokenizer.token_bytes(token) for token in (1, 2, 3)] == [b" I", b" am", b" here"]
    assert tokenizer.decode([1, 2, 3], skip_special=True) == "I am here"


def test_bytes_of_other_tokenizers_are_found_by_trial():
    tokenizer = words(decoders.WordPiece(cleanup=False))

    assert (tokenizer.token_bytes(4), tokenizer.token_bytes(5)) == (b"ing", b" go")


def test_what_the_post_processor_adds_is_added_on_request_only():
    plain = words(None)
    flagged = words(None, add_bos=True)
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 6)])
    bare = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<s>": 6}, unk_token="a"))
    bare.add_special_tokens(["<s>"])
    bare.post_processor = template
    processed, silenced = HfTokenizer(bare, bos="<s>"), HfTokenizer(bare, bos="<s>", add_bos=False)

    assert [each.encode("a", add_special=True) for each in (plain, flagged)] == [[7], [6, 7]]
    assert processed.encode("a", add_special=True)[:1] == [processed.bos_id]
    assert processed.encode("a", add_special=False) == silenced.encode("a", add_special=True)
    assert (plain.adds_bos, flagged.adds_bos, processed.adds_bos, silenced.adds_bos) == (False, True, True, False)


def test_truncation_and_padding_of_the_file_are_off():
    bare = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.enable_truncation(1)
    bare.enable_padding(length=5)

    assert HfTokenizer(bare).encode("a a a", add_special=False) == [0, 0, 0]
