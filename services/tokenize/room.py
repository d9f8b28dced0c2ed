"""Whether prompt and completion fit into the context, and the words clients recognise when they do not.

Clients match the openings of these messages to decide that a conversation must be shortened.
"""

from dataclasses import dataclass

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Protocol, Request

_PROMPT_PARAMS: dict[Protocol, str] = {"completion": "prompt", "responses": "input"}
_OUTPUT_PARAMS: dict[Protocol, str] = {"responses": "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tokens a request may have. 0 in a limit leaves it to the context."""

    context_tokens: int
    max_input_tokens: int = 0
    max_output_tokens: int = 0


def fit(request: Request, num_prompt: int, bounds: Bounds) -> int:
    """Most tokens to generate for a prompt of `num_prompt` tokens. Raises RequestError when it does not fit."""
    room = bounds.context_tokens - num_prompt
    if room < (0 if request.max_new == 0 else 1):
        raise _prompt_too_long(request, num_prompt, bounds)
    if bounds.max_input_tokens and num_prompt > bounds.max_input_tokens:
        raise _above_input_limit(request, num_prompt, bounds)
    if request.max_new is None:
        return min(room, bounds.max_output_tokens or room)
    wanted = _within_output_limit(request, request.max_new, bounds.max_output_tokens)
    if wanted > room and request.overflow == "reject":
        raise _total_too_long(request, num_prompt, wanted, bounds)
    return min(wanted, room)


def prompt_param(request: Request) -> str:
    """The field of the request that holds the prompt."""
    return _PROMPT_PARAMS.get(request.protocol, "messages")


def _within_output_limit(request: Request, wanted: int, limit: int) -> int:
    if not limit or wanted <= limit:
        return wanted
    if request.overflow == "clamp":
        return limit
    param = _OUTPUT_PARAMS.get(request.protocol, "max_tokens")
    message = f"{param} must be at most {limit}"
    raise RequestError(Code.INVALID_REQUEST, message, param=param, detail="integer_above_max_value")


def _prompt_too_long(request: Request, num_prompt: int, bounds: Bounds) -> RequestError:
    limit = bounds.context_tokens
    if request.protocol == "messages":
        # One token of the context is needed for an answer.
        return _too_long(request, f"prompt is too long: {num_prompt} tokens > {limit - 1} maximum")
    param = prompt_param(request)
    return _too_long(
        request,
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {num_prompt} "
        f"tokens. Please reduce the length of the {param}.",
    )


def _above_input_limit(request: Request, num_prompt: int, bounds: Bounds) -> RequestError:
    limit = bounds.max_input_tokens
    if request.protocol == "messages":
        return _too_long(request, f"prompt is too long: {num_prompt} tokens > {limit} maximum")
    param = prompt_param(request)
    return _too_long(
        request,
        f"This model's maximum context length is {bounds.context_tokens} tokens. However, at most {limit} tokens of "
        f"input are accepted here and your {param} resulted in {num_prompt} tokens. "
        f"Please reduce the length of the {param}.",
    )


def _total_too_long(request: Request, num_prompt: int, wanted: int, bounds: Bounds) -> RequestError:
    param = prompt_param(request)
    return _too_long(
        request,
        f"This model's maximum context length is {bounds.context_tokens} tokens. However, you requested "
        f"{num_prompt + wanted} tokens ({num_prompt} in the {param}, {wanted} in the completion). "
        f"Please reduce the length of the {param} or completion.",
    )


def _too_long(request: Request, message: str) -> RequestError:
    return RequestError(Code.CONTEXT_LENGTH, message, param=prompt_param(request))
