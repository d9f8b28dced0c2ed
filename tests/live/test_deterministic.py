"""`engine.deterministic=true` through the whole pipeline: a request's tokens do not depend on who else is served."""

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

WORDS = [
    "water",
    "wheel",
    "river",
    "stone",
    "mill",
    "gate",
    "grain",
    "flour",
    "summer",
    "winter",
    "meadow",
    "bridge",
    "miller",
    "sack",
    "cart",
]
SAMPLINGS = [{"temperature": 0}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.8, "top_p": 0.9, "seed": 11}]


@pytest.fixture(scope="module")
def client(
    up: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    with up(tmp_path_factory.mktemp("deterministic"), "--set", "engine.deterministic=true") as instance:
        yield openai.OpenAI(base_url=instance.url + "/v1", api_key="any", max_retries=0, timeout=120)


def ids(client: openai.OpenAI, prompt: str, sampling: dict[str, Any]) -> list[int]:
    extra = {"return_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(
        model="smollm2-135m-instruct", prompt=prompt, max_tokens=24, extra_body=extra, **sampling
    )
    return list(answer.choices[0].token_ids)


def prompts(num: int) -> list[str]:
    rng = random.Random(3)  # words of a test
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 180))) for _ in range(num)]


def test_tokens_are_the_same_alone_and_among_31_others(client: openai.OpenAI) -> None:
    asked = [(prompt, SAMPLINGS[index % len(SAMPLINGS)]) for index, prompt in enumerate(prompts(32))]
    alone = [ids(client, *one) for one in asked[:9]]

    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda one: ids(client, *one), reversed(asked)))[::-1]

    assert together[:9] == alone
    assert len({tuple(one) for one in together}) > 24
