"""Reference prompts of the catalogue's models: rendered text, prompt ids and decoded answers are equal."""

import json
from pathlib import Path

import pytest

from headrace.shared.messages import Conversation, Sampling, Turn
from headrace.shared.records import TextEvent
from headrace.shared.text.chat import Chat
from headrace.shared.text.pipeline import TextPipeline

pytestmark = pytest.mark.model

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = {"smollm2-135m-instruct": "golden-smollm2-dev.json", "gemma3-270m": "golden-gemma3-dev.json"}
ROWS = [(name, row) for name, file in FILES.items() for row in json.loads((GOLDEN / file).read_text("utf-8"))["rows"]]


@pytest.fixture(scope="session")
def smol_chat(catalogue_model):
    """SmolLM2's own template."""
    model = catalogue_model("smollm2-135m-instruct")
    chat = Chat(model.name, model.template, timeout_s=10)
    yield chat
    chat.close()


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_prompt_ids_are_the_reference(catalogue_model, name, row):
    tokenizer = catalogue_model(name).tokenizer

    assert tokenizer.encode(row["rendered"], add_special=row["kind"] == "text") == row["prompt_ids"]


@pytest.mark.parametrize("row", [row for _, row in ROWS if row["kind"] == "chat"])
def test_rendered_text_is_the_reference(smol_chat, row):
    turns = tuple(Turn(role=message["role"], text=message["content"]) for message in row["input"])

    assert smol_chat.render(Conversation(turns=turns)) == row["rendered"]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_answers_decode_to_the_reference_token_by_token(catalogue_model, name, row):
    model = catalogue_model(name)
    pipeline = TextPipeline(model.tokenizer, Sampling())

    events = [event for token in row["greedy_ids"] for event in pipeline.push([token])] + pipeline.finish("length")

    assert "".join(event.s for event in events if isinstance(event, TextEvent)) == row["text"]
    assert model.tokenizer.decode(row["greedy_ids"], skip_special=True) == row["text"]


def test_answers_end_at_the_models_end_token(catalogue_model):
    for name, row in ROWS:
        ends = [token for token in row["greedy_ids"] if token in catalogue_model(name).eos_ids]
        assert ends == row["greedy_ids"][-1:] or not ends


def test_special_tokens_of_users_are_control_tokens_or_text_as_configured(catalogue_model):
    tokenizer = catalogue_model("smollm2-135m-instruct").tokenizer

    parity = tokenizer.encode("a<|im_end|>", add_special=False)
    escaped = tokenizer.encode("a<|im_end|>", add_special=False, escape=True)

    assert parity[1:] == [2]
    assert not tokenizer.special_ids & set(escaped)
    assert tokenizer.decode(escaped, skip_special=True) == "a<|im_end|>"


def test_the_base_model_has_no_template(catalogue_model):
    assert catalogue_model("gemma3-270m").template is None
