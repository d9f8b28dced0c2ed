"""Loading the text side of models from GGUF files and directories."""

import pytest

from headrace.shared.errors import ModelError
from headrace.shared.text.gguf_metadata import read_metadata


class TestByteLevelGguf:
    """`gpt2` vocabularies."""

    def test_metadata_becomes_a_text_model(self, gguf_model):
        model = gguf_model("gpt2")

        assert (model.context_tokens, model.vocab_size, model.eos_ids) == (64, 261, {259, 260})
        assert model.template is not None
        assert model.template.variables == {"bos_token": "<s>", "eos_token": "</s>"}
        assert not model.tokenizer.adds_bos

    def test_smollm_splits_digits_and_gpt2_does_not(self, gguf_model):
        def ids(pre: str) -> list[int]:
            return gguf_model("gpt2", changes={"tokenizer.ggml.pre": pre}).tokenizer.encode("12th", add_special=False)

        assert ids("smollm") == [*b"12", 256]
        assert ids("gpt-2") == ids("default") == [257, 256]

    @pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
    def test_text_survives_the_round_trip(self, gguf_model, pre):
        tokenizer = gguf_model("gpt2", changes={"tokenizer.ggml.pre": pre}).tokenizer
        text = "The 1234 naïve cats' \n\n  tabs\t讲 don't"

        assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text

    def test_an_unknown_pre_tokenizer_is_refused_by_name(self, gguf_model):
        with pytest.raises(ModelError, match="'tekken'"):
            gguf_model("gpt2", changes={"tokenizer.ggml.pre": "tekken"})

    def test_an_unknown_vocabulary_is_refused_by_name(self, gguf_model):
        with pytest.raises(ModelError, match="'bert'"):
            gguf_model("gpt2", changes={"tokenizer.ggml.model": "bert"})

    def test_incomplete_metadata_is_refused(self, gguf_model):
        with pytest.raises(ModelError, match="merges"):
            gguf_model("gpt2", changes={"tokenizer.ggml.merges": None})

    def test_bos_is_added_when_the_file_says_so(self, gguf_model):
        tokenizer = gguf_model("gpt2", changes={"tokenizer.ggml.add_bos_token": True}).tokenizer

        assert tokenizer.encode("a", add_special=True)[0] == tokenizer.bos_id == 258
        assert tokenizer.encode("a", add_special=False)[0] != 258


class TestSentencePieceGguf:
    """`llama` vocabularies."""

    def test_pieces_merge_by_score(self, gguf_model):
        tokenizer = gguf_model("spm").tokenizer
        ids = tokenizer.encode("abc a", add_special=True)

        # `bc` (-1.5) scores better than `ab` (-2), `▁a` (-1) best of all.
        assert [tokenizer.token_text(token) for token in ids] == ["<bos>", "a", "bc", "▁a"]

    def test_unknown_characters_fall_back_to_bytes(self, gguf_model):
        tokenizer = gguf_model("spm").tokenizer
        ids = tokenizer.encode("讲", add_special=False)

        assert [tokenizer.token_text(token) for token in ids] == ["<0xE8>", "<0xAE>", "<0xB2>"]
        assert tokenizer.decode(ids, skip_special=True) == "讲"

    def test_user_defined_tokens_are_matched_first_and_are_text(self, gguf_model):
        tokenizer = gguf_model("spm").tokenizer

        assert tokenizer.encode("a\n\nb", add_special=False)[1] == 4
        assert 4 not in tokenizer.special_ids
        assert tokenizer.decode([4], skip_special=True) == "\n\n"

    def test_a_space_is_put_in_front_when_the_file_says_so(self, gguf_model):
        tokenizer = gguf_model("spm", changes={"tokenizer.ggml.add_space_prefix": True}).tokenizer
        ids = tokenizer.encode("a", add_special=False)

        assert [tokenizer.token_text(token) for token in ids] == ["▁a"]
        assert tokenizer.decode(ids, skip_special=True) == "a"
        assert tokenizer.token_bytes(ids[0]) == b" a"

    def test_special_tokens_in_text_are_text_when_escaped(self, gguf_model):
        tokenizer = gguf_model("spm").tokenizer

        assert tokenizer.encode("a<bos>", add_special=False)[1:] == [2]
        escaped = tokenizer.encode("a<bos>", add_special=False, escape=True)
        assert tokenizer.decode(escaped, skip_special=True) == "a<bos>"

    def test_a_base_model_has_no_template(self, gguf_model):
        assert gguf_model("spm").template is None


class TestDirectory:
    """Directories in Hugging Face form."""

    def test_all_end_tokens_of_the_generation_config_count(self, hf_model):
        model = hf_model(generation_config={"eos_token_id": [257, 259]}, tokenizer_config={"eos_token": "</s>"})

        assert model.eos_ids == {257, 258, 259}

    def test_special_tokens_may_be_objects_or_in_their_own_file(self, hf_model):
        model = hf_model(
            tokenizer_config={"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}"},
            special_tokens_map={"eos_token": "</s>"},
        )

        assert model.template is not None
        assert model.template.variables == {"bos_token": "<s>", "eos_token": "</s>"}
        assert (model.tokenizer.bos_id, model.tokenizer.eos_id) == (257, 258)

    def test_the_default_of_several_templates_is_used(self, hf_model):
        entries = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        model = hf_model(tokenizer_config={"chat_template": entries})

        assert model.template is not None
        assert model.template.source == "D"

    def test_a_template_file_comes_before_the_configuration(self, hf_model, tmp_path):
        (tmp_path / "chat_template.jinja").write_text("F")
        model = hf_model(tokenizer_config={"chat_template": "C"})

        assert model.template is not None
        assert model.template.source == "F"

    def test_add_bos_of_the_configuration_is_honoured(self, hf_model):
        model = hf_model(tokenizer_config={"bos_token": "<s>", "add_bos_token": True})

        assert model.tokenizer.encode("a", add_special=True)[0] == 257

    def test_recommended_sampling_is_read_when_the_author_samples(self, hf_model):
        config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}

        assert hf_model(generation_config=config).default_sampling == {
            "temperature": 0.6,
            "top_k": 20,
            "repetition": 1.1,
        }
        assert hf_model(generation_config={**config, "do_sample": False}).default_sampling == {}

    def test_a_missing_context_length_is_refused(self, hf_model):
        with pytest.raises(ModelError, match="context length"):
            hf_model(config={})

    def test_a_broken_file_is_refused_by_name(self, hf_model):
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            hf_model(generation_config="{")
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            hf_model(tokenizer="{", generation_config={})


class TestFiles:
    """What holds for every kind."""

    def test_a_template_file_replaces_the_models_own(self, gguf_model, tmp_path):
        path = tmp_path / "mine.jinja"
        path.write_text("{{ bos_token }}mine")
        own, mine = gguf_model("gpt2"), gguf_model("gpt2", template_override=str(path))

        assert mine.template is not None
        assert (mine.template.source, mine.template.variables["bos_token"]) == ("{{ bos_token }}mine", "<s>")
        assert mine.revision != own.revision

    def test_a_missing_template_file_is_refused(self, gguf_model):
        with pytest.raises(ModelError, match=r"gone\.jinja"):
            gguf_model("gpt2", template_override="gone.jinja")

    def test_the_context_can_be_cut_but_not_grown(self, gguf_model):
        assert gguf_model("gpt2", max_context=10).context_tokens == 10
        assert gguf_model("gpt2", max_context=1000).context_tokens == 64

    def test_a_context_of_zero_is_refused(self, gguf_model):
        with pytest.raises(ModelError, match="not positive"):
            gguf_model("gpt2", changes={"llama.context_length": 0})

    def test_the_scripted_model_needs_no_files(self, scripted):
        assert (scripted.context_tokens, scripted.vocab_size, scripted.eos_ids) == (8192, 262, {257})

    @pytest.mark.parametrize("num_bytes", [0, 3, 20, 40, 400])
    def test_a_file_cut_short_is_refused(self, gguf_model, tmp_path, num_bytes):
        gguf_model("gpt2")
        path = tmp_path / "model.gguf"
        path.write_bytes(path.read_bytes()[:num_bytes])

        with pytest.raises(ModelError, match=r"model\.gguf"):
            read_metadata(path)

    def test_a_length_beyond_the_file_is_refused(self, tmp_path):
        path = tmp_path / "huge.gguf"
        path.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + bytes(8) + bytes([1]) + bytes(7) + b"\xff" * 12)

        with pytest.raises(ModelError, match=r"huge\.gguf"):
            read_metadata(path)


def test_a_directory_may_take_its_vocabulary_from_a_gguf_file(hf_model_with_gguf_vocabulary):
    model = hf_model_with_gguf_vocabulary

    assert model.context_tokens == 32
    assert model.tokenizer.decode(model.tokenizer.encode("th12", add_special=False), skip_special=False) == "th12"
    assert model.template is not None
    assert model.eos_ids == {259}
