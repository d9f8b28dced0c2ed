"""The stream linter: a pure function from the raw bytes of a stream to what in it would break a real client."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

CONSTANT = ("id", "object", "created", "model", "system_fingerprint")
NULL_ALLOWED = {"content", "refusal", "reasoning", "reasoning_content"}


def lint_stream(raw: bytes, *, usage: bool = False, running: bool = False, num_choices: int = 1) -> list[str]:
    """Violations in a chat or completions stream; `usage`, `running`: the stream options that were asked for."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    frames, faults = _frames(text)
    if faults:
        return faults
    if not frames or frames[-1] != "[DONE]" or frames.count("[DONE]") != 1:
        return ["[DONE] must be the last frame, once"]
    chunks = [msgspec.json.decode(frame) for frame in frames[:-1]]
    if chunks and "error" in chunks[-1]:
        return [*_lint_error(chunks.pop()), *_lint_chunks(chunks, usage=False, num_choices=None, is_broken=True)]
    return [
        *_lint_chunks(chunks, usage=usage, num_choices=num_choices, is_broken=False),
        *_lint_usage(chunks, usage=usage, running=running),
    ]


def _frames(text: str) -> tuple[list[str], list[str]]:
    """Contents of the data frames, and what is wrong with the framing."""
    if not text.endswith("\n\n"):
        return [], ["the last frame lacks its blank line"]
    frames, faults = [], []
    for block in text[:-2].split("\n\n"):
        if block.splitlines() != [block]:
            faults.append(f"a frame of several lines: {block[:60]!r}")
        elif block.startswith("data: "):
            frames.append(block[6:])
        elif not block.startswith(":"):
            faults.append(f"neither data nor comment: {block[:60]!r}")
    return frames, faults


def _lint_error(chunk: dict[str, Any]) -> Iterator[str]:
    if set(chunk) != {"error"} or set(chunk["error"]) != {"message", "type", "param", "code"}:
        yield f"malformed error frame: {chunk}"


def _lint_chunks(
    chunks: list[dict[str, Any]], *, usage: bool, num_choices: int | None, is_broken: bool
) -> Iterator[str]:
    for key in CONSTANT:
        if len({chunk.get(key) for chunk in chunks}) > 1 or any(key not in chunk for chunk in chunks):
            yield f"{key} is not the same in all chunks"
    is_chat = bool(chunks) and chunks[0]["object"] == "chat.completion.chunk"
    seen: list[int] = []
    finished: list[int] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            index = choice["index"]
            if index in finished:
                yield f"choice {index} goes on after its finish chunk"
            if is_chat:
                yield from _lint_delta(choice, is_first=index not in seen)
            if index not in seen:
                seen.append(index)
            if choice["finish_reason"] is not None:
                finished.append(index)
    if seen != sorted(seen):
        yield f"choices first appear in the order {seen}"
    if not is_broken and sorted(finished) != list(range(num_choices or 0)):
        yield f"finish chunks for choices {finished}"


def _lint_delta(choice: dict[str, Any], *, is_first: bool) -> Iterator[str]:
    delta = choice["delta"]
    if ("role" in delta) != is_first:
        yield f"role in the wrong place: {delta}"
    for key, value in delta.items():
        if value is None and key not in NULL_ALLOWED:
            yield f"null {key} in a delta"
    if choice["finish_reason"] is not None and delta:
        yield f"the finish chunk has content: {delta}"


def _lint_usage(chunks: list[dict[str, Any]], *, usage: bool, running: bool) -> Iterator[str]:
    with_key = ["usage" in chunk for chunk in chunks]
    if not usage and not running and any(with_key):
        yield "usage was not asked for"
    if usage and (not chunks or chunks[-1]["choices"] or not chunks[-1].get("usage")):
        yield "the last chunk before [DONE] must be the usage chunk"
    if usage and not running and [chunk.get("usage", 0) for chunk in chunks[:-1]] != [None] * (len(chunks) - 1):
        yield "usage must be null before the usage chunk"
    if sum(not chunk["choices"] for chunk in chunks) != int(usage):
        yield "one chunk without choices, and only with usage"


@pytest.fixture
def lint() -> Callable[..., list[str]]:
    return lint_stream
