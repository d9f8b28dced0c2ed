"""Accepted requests to token ids."""

import pytest

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Conversation, Sampling, Template, Text, Tokens, Turn
from headrace.shared.packing import pack_ids, unpack_ids
from headrace.tokenize.handle import Rules, Served, tokenize


@pytest.fixture
def ids_of(accepted, served):
    """Tokenize a prompt; returns its ids."""

    def run(prompt, rules: Rules | None = None, by: Served = served, **fields) -> list[int]:
        return unpack_ids(tokenize(accepted(prompt, **fields), by, rules or Rules(), 1).prompt_ids)

    return run


def chat(*texts: str, **options) -> Conversation:
    turns = tuple(Turn(role="assistant" if index % 2 else "user", text=text) for index, text in enumerate(texts))
    return Conversation(turns=turns, template=Template(**options))


def test_the_item_carries_on_what_it_had(accepted, served):
    item = accepted(Text(text="abc"), tenant="t", max_new=5, sampling=Sampling(seed=3))

    done = tokenize(item, served, Rules(), accepted_ms=123)

    assert unpack_ids(done.prompt_ids) == list(b"abc")
    assert (done.accepted_ms, done.request) == (123, item.request)
    assert (done.prefilled, done.cached) == (0, None)


def test_the_output_limit_is_filled_in(accepted, served):
    assert tokenize(accepted(Text(text="abc")), served, Rules(), 0).request.max_new == 8192 - 3
    assert tokenize(accepted(Text(text="abc")), served, Rules(max_output_tokens=9), 0).request.max_new == 9


def test_a_conversation_is_rendered(ids_of):
    assert bytes(ids_of(chat("Hi"))) == b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_token_ids_are_used_as_they_are(ids_of):
    assert ids_of(Tokens(ids=pack_ids([256, 1, 261]))) == [256, 1, 261]


@pytest.mark.parametrize("prompt", [Text(text=""), Tokens(ids=b"")])
def test_an_empty_prompt_is_refused(ids_of, prompt):
    with pytest.raises(RequestError, match="prompt must contain at least one token") as caught:
        ids_of(prompt, protocol="completion")

    assert (caught.value.failure.code, caught.value.failure.param) == (Code.INVALID_PROMPT, "prompt")


@pytest.mark.parametrize("data", [pack_ids([262]), pack_ids([4_000_000_000]), b"abc"])
def test_ids_outside_the_vocabulary_are_refused(ids_of, data):
    with pytest.raises(RequestError) as caught:
        ids_of(Tokens(ids=data), protocol="completion")

    assert (caught.value.failure.code, caught.value.failure.param) == (Code.INVALID_PROMPT, "prompt")


def test_unpaired_surrogates_are_refused(ids_of):
    with pytest.raises(RequestError, match="cannot be encoded"):
        ids_of(Text(text="a\ud800"))
    with pytest.raises(RequestError, match="cannot be encoded"):
        ids_of(chat("a\ud800"))


def test_values_nested_too_deeply_are_refused(ids_of):
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}

    for rules in (Rules(), Rules(escape_special=True)):
        with pytest.raises(RequestError, match="encoded"):
            ids_of(chat("a", kwargs={"deep": deep}), rules)


def test_chat_on_a_model_without_template_is_refused(ids_of, served):
    with pytest.raises(RequestError, match="model scripted has no chat template") as caught:
        ids_of(chat("Hi"), by=Served(served.model, None))

    assert (caught.value.failure.code, caught.value.failure.param) == (Code.INVALID_PROMPT, "messages")
    assert ids_of(Text(text="Hi"), by=Served(served.model, None)) == list(b"Hi")


def test_special_tokens_of_users_are_control_tokens_or_text_as_configured(ids_of):
    parity, escaped = ids_of(chat("<think>")), ids_of(chat("<think>"), Rules(escape_special=True))

    assert 258 in parity
    assert bytes(escaped) == b"<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n"
    assert ids_of(Text(text="<think>"), Rules(escape_special=True)) == list(b"<think>")


def test_an_open_last_turn_ends_the_prompt(ids_of):
    ids = ids_of(chat("Q", "The capital of", add_generation_prompt=False, continue_final=True))

    assert bytes(ids).endswith(b"<|im_start|>assistant\nThe capital of")


def test_a_prompt_beyond_the_context_is_refused(ids_of):
    with pytest.raises(RequestError) as caught:
        ids_of(Text(text="x" * 9000), protocol="completion")

    assert caught.value.failure.code is Code.CONTEXT_LENGTH


class BosTokenizer:
    """Adds id 1 in front; `^` in a text is id 1 itself."""

    vocab_size, bos_id, eos_id, adds_bos = 300, 1, 2, True
    special_ids = frozenset({1, 2})

    def encode(self, text: str, *, add_special: bool, escape: bool = False) -> list[int]:
        return [1] * add_special + [1 if char == "^" and not escape else ord(char) for char in text]


@pytest.fixture
def bos_model(served) -> Served:
    """A model whose tokenizer adds BOS."""

    class Model:
        name, context_tokens, vocab_size, tokenizer = "bos", 100, 300, BosTokenizer()

    class Doubling:
        def render(self, conversation, guard) -> str:
            return "^^" + conversation.turns[0].text

    return Served(Model(), Doubling())


@pytest.mark.parametrize("prompt", [Text(text="^hi"), Text(text="hi"), Text(text="^hi", add_special=False), chat("hi")])
def test_there_is_exactly_one_bos(ids_of, bos_model, prompt):
    assert ids_of(prompt, by=bos_model) == [1, *b"hi"]
