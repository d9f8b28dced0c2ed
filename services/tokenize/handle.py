"""One accepted request to token ids: render, encode, check, fill in the output limit. Knows no queue."""

from dataclasses import dataclass
from typing import assert_never

import msgspec

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Accepted, Conversation, Prompt, Request, Text, Tokenized, Tokens
from headrace.shared.packing import pack_ids, unpack_ids
from headrace.shared.text.chat import Chat
from headrace.shared.text.model import TextModel
from headrace.shared.text.tokenizer import Tokenizer
from headrace.tokenize.checks import check_request
from headrace.tokenize.room import Bounds, fit, prompt_param


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says about prompts. 0 in a limit leaves it to the model's context."""

    escape_special: bool = False
    max_input_tokens: int = 0
    max_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """One model as this stage serves it."""

    model: TextModel
    chat: Chat | None
    """None: the model has no chat template."""


_QUICK_BYTES = 4096


def is_quick(prompt: Prompt) -> bool:
    """Whether its ids are made in less time than handing the work to a thread takes: little text and no template."""
    if isinstance(prompt, Tokens):
        return len(prompt.ids) <= _QUICK_BYTES
    return isinstance(prompt, Text) and len(prompt.text) <= _QUICK_BYTES


def tokenize(item: Accepted, served: Served, rules: Rules, accepted_ms: int) -> Tokenized:
    """Turn an accepted request into its tokenized form; blocks for as long as rendering and encoding take.

    Raises RequestError when the request cannot be served.
    """
    request = item.request
    model = served.model
    check_request(request, model)
    ids = _prompt_ids(item.prompt, request, served, rules)
    if not ids:
        message = "prompt must contain at least one token"
        raise RequestError(Code.INVALID_PROMPT, message, param=prompt_param(request))
    bounds = Bounds(model.context_tokens, rules.max_input_tokens, rules.max_output_tokens)
    max_new = fit(request, len(ids), bounds)
    return Tokenized(
        request=msgspec.structs.replace(request, max_new=max_new),
        prompt_ids=pack_ids(ids),
        accepted_ms=accepted_ms,
        deaths=item.deaths,
    )


def _prompt_ids(prompt: Prompt, request: Request, served: Served, rules: Rules) -> list[int]:
    if isinstance(prompt, Tokens):
        return _given_ids(prompt, served.model, prompt_param(request))
    try:
        if isinstance(prompt, Text):
            return _text_ids(prompt, served.model.tokenizer, rules)
        if isinstance(prompt, Conversation):
            return _conversation_ids(prompt, served, rules)
    except (UnicodeEncodeError, RecursionError) as error:
        message = f"the {prompt_param(request)} cannot be encoded: unpaired surrogates or values nested too deeply"
        raise RequestError(Code.INVALID_PROMPT, message, param=prompt_param(request)) from error
    assert_never(prompt)


def _given_ids(prompt: Tokens, model: TextModel, param: str) -> list[int]:
    try:
        ids = unpack_ids(prompt.ids)
    except ValueError as error:
        raise RequestError(Code.INVALID_PROMPT, f"{param} holds no packed token ids", param=param) from error
    if ids and max(ids) >= model.vocab_size:
        message = f"{param} holds token id {max(ids)}, but model {model.name} has {model.vocab_size} tokens"
        raise RequestError(Code.INVALID_PROMPT, message, param=param)
    return ids


def _text_ids(prompt: Text, tokenizer: Tokenizer, rules: Rules) -> list[int]:
    ids = tokenizer.encode(prompt.text, add_special=prompt.add_special, escape=rules.escape_special)
    return _with_one_bos(ids, tokenizer)


def _conversation_ids(prompt: Conversation, served: Served, rules: Rules) -> list[int]:
    tokenizer = served.model.tokenizer
    if served.chat is None:
        message = f"model {served.model.name} has no chat template: use completions, or configure model.chat_template"
        raise RequestError(Code.INVALID_PROMPT, message, param="messages")
    text = served.chat.render(prompt, tokenizer.guard if rules.escape_special else None)
    # The template has written the special tokens it wants.
    ids = tokenizer.encode(text, add_special=False, escape=rules.escape_special)
    return _with_one_bos(ids, tokenizer)


def _with_one_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Text may begin with the BOS that the tokenizer adds, or that the template has written twice."""
    is_doubled = tokenizer.adds_bos and ids[:2] == [tokenizer.bos_id, tokenizer.bos_id]
    return ids[1:] if is_doubled else ids
