"""The block cache is only ever a saving: hit, miss, loss, damage and silence of the store give the same tokens.

Every test has a cache salt of its own, so each begins cold although all ask the same question of one instance.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import redis
import yaml

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
BLOCK_TOKENS = 16
NUM_NEW = 24
PROMPT = "Count upwards without end: " + "".join(f"{number}, " for number in range(1, 152))
"""About 600 tokens: digits and commas are tokens of their own. The model goes on counting, and it is far from any doubt
while it does, so another order of summation (a longer cached prefix, another split into chunks) cannot tip a token. A
story would not do: there the two best tokens come within rounding of each other every few dozen tokens."""
BORDERS = (15, 16, 17, 32, 33)
"""Prompt lengths around one and two blocks."""
INDEX_AT = 16
"""Where the header of a stored block holds its place in the prompt, four bytes."""

Up = Callable[..., contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Answer:
    """One greedy answer as its caller saw it."""

    ids: list[int]
    prompt_ids: list[int]
    cached: int
    ttft_s: float
    total_s: float


def ask(instance: Any, salt: str, prompt: str | list[int] = PROMPT, num_new: int = NUM_NEW) -> Answer:
    began, ttft_s = time.monotonic(), 0.0
    ids: list[int] = []
    prompt_ids: list[int] = []
    usage: Any = None
    with openai.OpenAI(base_url=instance.url + "/v1", api_key="any", max_retries=0, timeout=60) as client:
        stream = client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=num_new,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True, "ignore_eos": True, "cache_salt": salt},
        )
        for chunk in stream:
            prompt_ids += getattr(chunk, "prompt_token_ids", None) or []
            for choice in chunk.choices:
                ttft_s = ttft_s or time.monotonic() - began
                ids += choice.token_ids or []  # type: ignore[attr-defined]  # an extension of ours
            usage = chunk.usage or usage
    return Answer(ids, prompt_ids, usage.prompt_tokens_details.cached_tokens, ttft_s, time.monotonic() - began)


def ask_borders(instance: Any, salt: str, prompt_ids: list[int]) -> dict[int, Answer]:
    """Prompts of each length in `BORDERS`, none of which finds blocks of another."""
    return {num: ask(instance, f"{salt}, {num} tokens", prompt_ids[:num], NUM_NEW // 3) for num in BORDERS}


class Store:
    """The Valkey of an instance, seen from outside."""

    def __init__(self, instance: Any) -> None:
        self._instance = instance
        config = yaml.safe_load((instance.data_dir / "run" / "config.yaml").read_text("utf-8"))
        self._client = redis.Redis.from_url(config["cache"]["url"])

    @property
    def pid(self) -> int:
        (row,) = self._instance.workers("valkey")
        return int(row["pid"])

    def blocks(self) -> dict[bytes, int]:
        """Key → place in the prompt, of everything that is stored."""
        return {key: self._place(key) for key in self._client.scan_iter("kv:*", count=1000)}

    def delete(self, *keys: bytes) -> None:
        assert self._client.delete(*keys) == len(keys)

    def flip_a_bit(self, key: bytes) -> None:
        """Damage the last byte of a value, which belongs to a tensor."""
        at = self._client.strlen(key) - 1
        (byte,) = self._client.getrange(key, at, at)
        self._client.setrange(key, at, bytes([byte ^ 1]))

    def close(self) -> None:
        self._client.close()

    def _place(self, key: bytes) -> int:
        return int.from_bytes(self._client.getrange(key, INDEX_AT, INDEX_AT + 3), "little")


@pytest.fixture(scope="module")
def fp32(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Every prompt of at least one block goes through the prefill stage, so that short ones meet the store too."""
    settings = ("engine.profile=fp32", "router.direct_tokens=1", "up.restart_backoff_s=0.1")
    flags = [word for setting in settings for word in ("--set", setting)]
    with up(tmp_path_factory.mktemp("cache"), "--model", MODEL, *flags) as instance:
        yield instance


@pytest.fixture(scope="module")
def reference(up: Up, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """Prompt length → ids of an instance without a shared cache: the whole prompt and those around block borders."""
    settings = ("--set", "engine.profile=fp32", "--set", "cache.url=off")
    with up(tmp_path_factory.mktemp("off"), "--model", MODEL, *settings) as instance:
        whole = ask(instance, "reference")
        assert whole.cached == 0
        short = ask_borders(instance, "reference", whole.prompt_ids)
    return {0: whole.prompt_ids, len(whole.prompt_ids): whole.ids, **{num: short[num].ids for num in BORDERS}}


@pytest.fixture
def wanted(reference: dict[int, list[int]]) -> list[int]:
    return reference[len(reference[0])]


@pytest.fixture
def store(fp32: Any, salt: str) -> Iterator[Store]:
    """The store, in use: after a failure it is left alone for some seconds."""
    probes = itertools.count()

    def is_filled() -> bool:
        before = store.blocks()
        ask(fp32, f"{salt}, probe {next(probes)}", list(range(1000, 1020)), 1)
        return len(store.blocks()) > len(before)

    with contextlib.closing(Store(fp32)) as store:
        fp32.wait("a store in use", is_filled)
        yield store


@pytest.fixture
def salt(numbers: Iterator[int]) -> str:
    return f"salt {next(numbers)}"


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


def restart(instance: Any, *stages: str) -> None:
    """Kill workers and wait for the next ones: what they held in memory is gone."""
    old = {row["wid"]: row["pid"] for stage in stages for row in instance.workers(stage)}
    for pid in old.values():
        os.kill(pid, signal.SIGKILL)
    for stage in stages:
        instance.wait(f"a new {stage}", lambda stage=stage: [w for w in instance.workers(stage) if w["wid"] not in old])


def cold(instance: Any, store: Store, salt: str, wanted: list[int]) -> tuple[Answer, dict[bytes, int]]:
    """A first answer, checked, and the blocks it left in the store."""
    before = store.blocks()
    answer = ask(instance, salt)
    assert answer.ids == wanted
    assert answer.cached == 0
    stored = {key: place for key, place in store.blocks().items() if key not in before}
    assert sorted(stored.values()) == list(range(len(answer.prompt_ids) // BLOCK_TOKENS))
    return answer, stored


def test_a_repeated_prompt_is_found_and_answered_sooner(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    first, _ = cold(fp32, store, salt, wanted)
    second = ask(fp32, salt)

    assert len(first.prompt_ids) > 500
    assert len(wanted) == NUM_NEW
    assert second.ids == wanted
    assert second.cached >= len(first.prompt_ids) - BLOCK_TOKENS
    assert second.ttft_s < first.ttft_s / 2


def test_two_salts_never_share(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    cold(fp32, store, salt, wanted)
    other, _ = cold(fp32, store, f"{salt} of somebody else", wanted)

    assert other.cached == 0
    assert ask(fp32, salt).cached > 0


def test_a_new_decode_worker_uses_what_is_stored(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    first, _ = cold(fp32, store, salt, wanted)
    restart(fp32, "decode", "prefill")
    again = ask(fp32, salt)

    assert again.ids == wanted
    assert again.cached > 0
    assert again.ttft_s < first.ttft_s / 2


def test_half_of_the_blocks_evicted(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    _, stored = cold(fp32, store, salt, wanted)
    store.delete(*(key for key, place in stored.items() if place % 2))
    restart(fp32, "decode")

    assert ask(fp32, salt).ids == wanted
    assert stored.keys() <= store.blocks().keys()  # the gaps are filled again


def test_a_damaged_block_is_not_used(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    _, stored = cold(fp32, store, salt, wanted)
    (key,) = [key for key, place in stored.items() if place == 20]
    store.flip_a_bit(key)
    restart(fp32, "decode", "prefill")
    again = ask(fp32, salt)

    assert again.ids == wanted
    assert num_corrupt(fp32) == 1
    assert ask(fp32, salt).ids == wanted
    assert key in store.blocks()
    assert num_corrupt(fp32) == 1  # a whole one has taken its place


def num_corrupt(instance: Any) -> float:
    """Blocks that the engine workers of now refused."""
    name = 'headrace_kv_miss_total{reason="corrupt"}'
    lines = [line for stage in ("prefill", "decode") for line in instance.metrics(stage) if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_a_store_that_dies_is_missed_and_filled_again(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    cold(fp32, store, salt, wanted)
    dead = store.pid
    os.kill(dead, signal.SIGKILL)

    assert ask(fp32, salt).ids == wanted
    fp32.wait("a new store", lambda: fp32.workers("valkey") and store.pid != dead)
    fp32.wait("a filled store", lambda: ask(fp32, salt).ids == wanted and store.blocks())


def test_a_store_that_hangs_costs_next_to_nothing(fp32: Any, store: Store, salt: str, wanted: list[int]) -> None:
    first, _ = cold(fp32, store, salt, wanted)
    pid = store.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        known, unknown = ask(fp32, salt), ask(fp32, f"{salt} while it hangs")
    finally:
        os.kill(pid, signal.SIGCONT)

    assert known.ids == unknown.ids == wanted
    assert max(known.total_s, unknown.total_s) < first.total_s + 2
    assert ask(fp32, salt).ids == wanted


def test_prompts_around_a_block_border(fp32: Any, store: Store, salt: str, reference: dict[int, list[int]]) -> None:
    misses = ask_borders(fp32, salt, reference[0])
    hits = ask_borders(fp32, salt, reference[0])
    restart(fp32, "decode")
    from_store = ask_borders(fp32, salt, reference[0])

    for num in BORDERS:
        assert misses[num].ids == hits[num].ids == from_store[num].ids == reference[num]
        assert misses[num].cached == 0
        assert (num - 1) // BLOCK_TOKENS * BLOCK_TOKENS <= hits[num].cached <= num
