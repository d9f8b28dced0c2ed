"""Reference token ids through the whole pipeline: HTTP, five stages, real model, fp32."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).parents[1] / "golden"
CLOSE_CALL = 0.002
"""Where the two best tokens are this close, another order of summation may choose the other one."""

SMOLLM2 = json.loads((GOLDEN / "golden-smollm2-dev.json").read_text())["rows"]
GEMMA = json.loads((GOLDEN / "golden-gemma3-dev.json").read_text())["rows"]
ROWS = [("smollm2-135m-instruct", row) for row in SMOLLM2] + [("gemma3-270m", row) for row in GEMMA]


@pytest.fixture(scope="module")
def fp32(
    up: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    models = ["--model", "smollm2-135m-instruct", "gemma3-270m"]
    with up(tmp_path_factory.mktemp("fp32"), *models, "--set", "engine.profile=fp32") as instance:
        yield instance


def ask(instance: Any, model: str, row: dict[str, Any], **options: Any) -> Any:
    client = openai.OpenAI(base_url=instance.url + "/v1", api_key="any", max_retries=0, timeout=120)
    common = {"model": model, "max_tokens": 48, "temperature": 0, "extra_body": {"return_token_ids": True}, **options}
    if row["kind"] == "chat":
        return client.chat.completions.create(messages=row["input"], **common)
    return client.completions.create(prompt=row["input"], **common)


def first_difference(row: dict[str, Any], ids: list[int]) -> int | None:
    """Offset of the first id that differs from the reference, None when all agree."""
    wanted = row["greedy_ids"]
    differing = (n for n, (ours, theirs) in enumerate(zip(ids, wanted, strict=False)) if ours != theirs)
    return next(differing, None if len(ids) == len(wanted) else min(len(ids), len(wanted)))


@pytest.mark.parametrize(("model", "row"), ROWS, ids=[f"{model}-{n}" for n, (model, _) in enumerate(ROWS)])
def test_greedy_ids_and_prompt_ids_equal_the_reference(fp32: Any, model: str, row: dict[str, Any]) -> None:
    answer = ask(fp32, model, row)
    stream = list(ask(fp32, model, row, stream=True))
    is_chat = row["kind"] == "chat"

    assert answer.prompt_token_ids == row["prompt_ids"]
    differs = first_difference(row, answer.choices[0].token_ids)
    assert differs is None or row["top2_gaps"][differs] < CLOSE_CALL
    plain = answer.choices[0].message.content if is_chat else answer.choices[0].text
    parts = [chunk.choices[0].delta.content if is_chat else chunk.choices[0].text for chunk in stream]
    assert "".join(part or "" for part in parts) == plain
    if differs is None:
        assert plain == row["text"]


def test_the_default_profile_opens_most_rows_with_the_same_tokens(
    up: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path: Path
) -> None:
    with up(tmp_path, "--model", "smollm2-135m-instruct", "gemma3-270m") as instance:
        answers = [(row, ask(instance, model, row).choices[0].token_ids) for model, row in ROWS]

    same = [ids[:8] == row["greedy_ids"][:8] for row, ids in answers]
    assert sum(same) >= 12
