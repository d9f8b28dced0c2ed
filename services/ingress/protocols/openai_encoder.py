"""Renders run-log records as OpenAI chunks or as one reply; chat and legacy completions differ by a few pieces.

Everything that does not change between chunks is serialised once. The encoder folds over the log and looks at nothing
else, so the same records always give the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.ingress import sse
from headrace.ingress.dialect import Problem, openai_error
from headrace.ingress.protocols.contract import Head
from headrace.ingress.protocols.options import Render
from headrace.shared.packing import num_packed, unpack_ids
from headrace.shared.records import Cause, ChoiceChunk, EndEvent, FinRecord, PromptUsage, TextEvent, TokRecord

FINISH_REASONS: dict[Cause, str] = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
"""Causes that end a choice well; the others leave it without a finish chunk."""

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tells one OpenAI dialect's objects from another's."""

    id_prefix: str
    chunk_object: str
    reply_object: str
    opening: bytes | None
    """Content of the first chunk of a choice, sent with the first real output."""
    text_open: bytes
    text_close: bytes
    empty: bytes
    choice: Callable[[str], dict[str, object]]
    """The text part of a choice in a plain reply."""


@dataclass(slots=True)
class _Usage:
    prompt: PromptUsage = field(default_factory=lambda: PromptUsage(prompt_tokens=0))
    num_generated: int = 0

    def as_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt.prompt_tokens,
            "completion_tokens": self.num_generated,
            "total_tokens": self.prompt.prompt_tokens + self.num_generated,
            "prompt_tokens_details": {"cached_tokens": self.prompt.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class OpenAIEncoder:
    """One reply of one request."""

    def __init__(self, head: Head, render: Render, shape: Shape) -> None:
        self._render = render
        self._shape = shape
        suffix = f"-{render.suffix}" if render.suffix else ""
        self._head: dict[str, object] = {
            "id": f"{shape.id_prefix}{head.rid}{suffix}",
            "object": shape.chunk_object,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "service_tier": "default",
        }
        self._usage = _Usage()
        self._prompt_ids: list[int] | None = None
        self._is_open = False
        self._ended: set[int] = set()
        self._start = b"data: " + sse.one_line(_json(self._head)[:-1]) + b',"choices":['
        null_usage = b',"usage":null' if render.include_usage else b""
        self._plain_end = shape.text_close + b',"logprobs":null,"finish_reason":null}]' + null_usage + b"}\n\n"
        self._plain_starts: dict[int, bytes] = {}
        self._is_plain = not (render.token_ids or render.continuous_usage)

    def tok(self, record: TokRecord) -> list[bytes]:
        """Frames of one append; none while it shows nothing."""
        self._note_prompt(record)
        frames: list[bytes] = []
        for chunk in record.choices:
            self._add_choice(chunk, frames)
        return frames

    def fin(self, record: FinRecord) -> list[bytes]:
        """Finish chunks of choices that got none, usage if asked for, `[DONE]`."""
        if record.prompt is not None:
            self._usage.prompt = record.prompt
        frames: list[bytes] = []
        for end in record.choices:
            if end.i not in self._ended and end.cause in FINISH_REASONS:
                self._open(frames)
                frames.append(self._finish(end.i, end.cause, end.match, []))
        if self._render.include_usage:
            frames.append(self._start + b'],"usage":' + _json(self._usage.as_json()) + b"}\n\n")
        frames.append(sse.DONE)
        return frames

    def failure(self, problem: Problem) -> list[bytes]:
        """The error as a frame, then `[DONE]`; broken choices get no finish chunk."""
        return [sse.data(_json({"error": openai_error(problem)})), sse.DONE]

    def reply(self, toks: Sequence[TokRecord], fin: FinRecord) -> bytes:
        """The whole answer as one JSON body."""
        texts: dict[int, list[str]] = {}
        ids: dict[int, list[int]] = {}
        for record in toks:
            self._note_prompt(record)
            for chunk in record.choices:
                texts.setdefault(chunk.i, []).append(_text_of(chunk))
                ids.setdefault(chunk.i, []).extend(unpack_ids(chunk.t) if self._render.token_ids else ())
                self._usage.num_generated += num_packed(chunk.t)
        if fin.prompt is not None:
            self._usage.prompt = fin.prompt
        body = self._head | {"object": self._shape.reply_object}
        if self._render.token_ids:
            body["prompt_token_ids"] = self._prompt_ids
        body["choices"] = [
            self._reply_choice(end.i, "".join(texts.get(end.i, ())), ids.get(end.i, []), end.cause, end.match)
            for end in fin.choices
        ]
        return _json(body | {"usage": self._usage.as_json()})

    def _reply_choice(
        self, index: int, text: str, ids: list[int], cause: Cause, match: str | int | None
    ) -> dict[str, object]:
        choice: dict[str, object] = {"index": index, **self._shape.choice(text), "logprobs": None}
        choice |= {"finish_reason": FINISH_REASONS[cause], "stop_reason": match}
        return choice | {"token_ids": ids} if self._render.token_ids else choice

    def _note_prompt(self, record: TokRecord) -> None:
        if record.prompt is not None:
            self._usage.prompt = record.prompt
        if record.prompt_ids is not None and self._render.token_ids:
            self._prompt_ids = unpack_ids(record.prompt_ids)

    def _add_choice(self, chunk: ChoiceChunk, frames: list[bytes]) -> None:
        self._usage.num_generated += num_packed(chunk.t)
        text = _text_of(chunk)
        end = next((event for event in chunk.ev if isinstance(event, EndEvent) and event.cause in FINISH_REASONS), None)
        ids = unpack_ids(chunk.t) if self._render.token_ids else []
        if not text and end is None and not ids:
            return
        self._open(frames)
        if text or (ids and end is None):
            frames.append(self._text(chunk.i, text, ids))
            ids = []
        if end is not None:
            frames.append(self._finish(chunk.i, end.cause, end.match, ids))

    def _open(self, frames: list[bytes]) -> None:
        if not self._is_open:
            self._is_open = True
            if self._shape.opening is not None:
                frames.append(self._chunk(0, self._shape.opening, b"null", []))

    def _text(self, index: int, text: str, ids: list[int]) -> bytes:
        json = sse.one_line(_json(text))
        if self._is_plain:
            return self._plain_start(index) + json + self._plain_end
        return self._chunk(index, self._shape.text_open + json + self._shape.text_close, b"null", ids)

    def _plain_start(self, index: int) -> bytes:
        start = self._plain_starts.get(index)
        if start is None:
            start = self._start + b'{"index":%d' % index + self._shape.text_open
            self._plain_starts[index] = start
        return start

    def _finish(self, index: int, cause: Cause, match: str | int | None, ids: list[int]) -> bytes:
        self._ended.add(index)
        reason = _json(FINISH_REASONS[cause]) + b',"stop_reason":' + sse.one_line(_json(match))
        return self._chunk(index, self._shape.empty, reason, ids)

    def _chunk(self, index: int, content: bytes, finish: bytes, ids: list[int]) -> bytes:
        parts = [self._start, b'{"index":%d' % index, content, b',"logprobs":null,"finish_reason":', finish]
        if self._render.token_ids:
            parts += [b',"token_ids":', _json(ids)]
        parts.append(b"}]")
        if self._prompt_ids is not None:
            parts += [b',"prompt_token_ids":', _json(self._prompt_ids)]
            self._prompt_ids = None
        if self._render.continuous_usage:
            parts += [b',"usage":', _json(self._usage.as_json())]
        elif self._render.include_usage:
            parts.append(b',"usage":null')
        parts.append(b"}\n\n")
        return b"".join(parts)


def _text_of(chunk: ChoiceChunk) -> str:
    events = chunk.ev
    if len(events) == 1:
        event = events[0]
        return event.s if isinstance(event, TextEvent) else ""
    return "".join(event.s for event in events if isinstance(event, TextEvent))
