"""What a request must satisfy before anything is computed for it.

Ingress has checked the same for HTTP; whoever publishes to the queue directly is checked here only.
"""

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Request, Sampling, Script
from headrace.shared.text.model import TextModel

_MAX_STOPS = 4
_MAX_STOP_CHARS = 64
_MAX_SALT_CHARS = 1024
_MAX_SESSION_CHARS = 512
"""Routers keep sessions in memory."""
_SCRIPTED = "scripted"
_MAX_PAUSE_MS = 3_600_000
_MAX_RANDOM = 100_000

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "presence": (-2.0, 2.0),
    "frequency": (-2.0, 2.0),
    "repetition": (0.01, 100.0),
    "seed": (-(2**63), 2**64 - 1),
}
_WIRE_NAMES = {
    "presence": "presence_penalty",
    "frequency": "frequency_penalty",
    "repetition": "repetition_penalty",
}
_MAX_BIAS = 100.0


def check_request(request: Request, model: TextModel) -> None:
    """Raise RequestError naming the first field that is wrong."""
    if request.n != 1:
        raise RequestError(Code.UNSUPPORTED, "n must be 1: several choices are not supported", param="n")
    if request.max_new is not None and request.max_new < 0:
        raise _invalid("max_tokens", "must not be negative", "integer_below_min_value")
    if request.script is not None:
        _check_script(request.script, model)
    _check_lengths(request)
    for name in request.deadlines.__struct_fields__:
        if not 0 < getattr(request.deadlines, name) < float("inf"):
            raise _invalid(f"deadlines.{name}", "must be a positive number of seconds")
    _check_ranges(request.sampling)
    _check_stops(request.sampling.stop)
    _check_ids(request.sampling, model.vocab_size)


def _check_script(script: Script, model: TextModel) -> None:
    if model.name != _SCRIPTED:
        raise _invalid("x_script", f"is played by model {_SCRIPTED} only")
    for step in (step for steps in script.choices for step in steps):
        if step.pause_ms is not None and not 0 <= step.pause_ms <= _MAX_PAUSE_MS:
            raise _invalid("x_script", f"must hold pauses of 0 to {_MAX_PAUSE_MS} ms")
        if step.random is not None and not 1 <= step.random <= _MAX_RANDOM:
            raise _invalid("x_script", f"must draw 1 to {_MAX_RANDOM} tokens at once")


def _check_lengths(request: Request) -> None:
    for name, text, limit in (
        ("session_id", request.session, _MAX_SESSION_CHARS),
        ("cache_salt", request.cache_salt, _MAX_SALT_CHARS),
    ):
        if len(text) > limit:
            raise _invalid(name, f"must have at most {limit} characters", "string_above_max_length")


def _check_ranges(sampling: Sampling) -> None:
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        # Written so that NaN fails.
        if value is not None and not low <= value <= high:
            raise _invalid(_WIRE_NAMES.get(name, name), f"must be between {low:g} and {high:g}")
    if not all(-_MAX_BIAS <= bias <= _MAX_BIAS for bias in sampling.logit_bias.values()):
        raise _invalid("logit_bias", f"must hold values between {-_MAX_BIAS:g} and {_MAX_BIAS:g}")


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > _MAX_STOPS:
        raise _invalid("stop", f"must have at most {_MAX_STOPS} entries", "array_above_max_length")
    if not all(0 < len(stop) <= _MAX_STOP_CHARS for stop in stops):
        raise _invalid("stop", f"must hold strings of 1 to {_MAX_STOP_CHARS} characters")


def _check_ids(sampling: Sampling, vocab_size: int) -> None:
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_ids)):
        if not all(0 <= token < vocab_size for token in ids):
            raise _invalid(name, f"must hold token ids of this model, below {vocab_size}")


def _invalid(param: str, reason: str, detail: str | None = None) -> RequestError:
    return RequestError(Code.INVALID_REQUEST, f"{param} {reason}", param=param, detail=detail)
