"""Sampling fields, the same in all OpenAI dialects: ranges are checked here, defaults are left to the model."""

import re

from headrace.ingress.protocols.contract import Terms
from headrace.ingress.protocols.fields import Fields, as_integer, as_number, invalid, wrong_type
from headrace.shared.messages import Sampling

_MAX_STOPS = 4
_MAX_STOP_CHARS = 64
_MAX_STOP_IDS = 128
_MAX_BIASES = 300
_MAX_ID = 2**32 - 1
_MAX_TOP_K = 2**31 - 1
_SMALLEST_NUCLEUS = 1e-6
"""A nucleus that always holds exactly one token."""
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def read_sampling(fields: Fields, terms: Terms) -> Sampling:
    """All sampling of a body."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=_top_p(fields),
        top_k=_top_k(fields),
        min_p=fields.number("min_p", 0, 1),
        presence=fields.number("presence_penalty", -2, 2) or 0.0,
        frequency=fields.number("frequency_penalty", -2, 2) or 0.0,
        repetition=_repetition(fields),
        logit_bias=_logit_bias(fields),
        seed=terms.seed if seed is None else seed,
        stop=_stop(fields),
        include_stop=fields.boolean("include_stop_str_in_output"),
        stop_ids=_stop_ids(fields),
        ignore_eos=fields.boolean("ignore_eos"),
        skip_special=fields.boolean("skip_special_tokens", default=True),
    )


def read_limit(fields: Fields, name: str, low: int, terms: Terms) -> int | None:
    """A token limit, at most what the server allows; −1 is what some clients send for none."""
    if fields.values.get(name) in (-1, -1.0):
        fields.take(name)
        return None
    limit = fields.integer(name, low, 2**31 - 1)
    if limit is not None and terms.max_output_tokens and limit > terms.max_output_tokens:
        raise invalid(name, f"must be at most {terms.max_output_tokens} here", "integer_above_max_value")
    return limit


def _top_p(fields: Fields) -> float | None:
    top_p = fields.number("top_p", 0, 1)
    return _SMALLEST_NUCLEUS if top_p == 0 else top_p


def _top_k(fields: Fields) -> int | None:
    top_k = fields.integer("top_k", -1, _MAX_TOP_K)
    return 0 if top_k == -1 else top_k


def _repetition(fields: Fields) -> float | None:
    # Values close to zero would overflow the logits they divide.
    return fields.number("repetition_penalty", 0.01, 100)


def _stop(fields: Fields) -> tuple[str, ...]:
    raw = fields.values.get("stop")
    stops = [fields.string("stop")] if isinstance(raw, str) else fields.array("stop", _MAX_STOPS) or []
    checked = []
    for index, stop in enumerate(stops):
        path = "stop" if isinstance(raw, str) else f"stop[{index}]"
        if not isinstance(stop, str):
            raise wrong_type(path, "a string", stop)
        if not stop:
            raise invalid(path, "must not be empty")
        if len(stop) > _MAX_STOP_CHARS:
            raise invalid(path, f"must have at most {_MAX_STOP_CHARS} characters", "string_above_max_length")
        checked.append(stop)
    return tuple(checked)


def _stop_ids(fields: Fields) -> tuple[int, ...]:
    ids = fields.array("stop_token_ids", _MAX_STOP_IDS) or []
    return tuple(as_integer(value, f"stop_token_ids[{index}]", 0, _MAX_ID) for index, value in enumerate(ids))


def _logit_bias(fields: Fields) -> dict[int, float]:
    biases = fields.nested("logit_bias")
    if biases is None:
        return {}
    if len(biases.values) > _MAX_BIASES:
        raise invalid("logit_bias", f"must have at most {_MAX_BIASES} entries", "object_above_max_properties")
    checked = {}
    for key, value in biases.values.items():
        if not _TOKEN_ID.fullmatch(key) or int(key) > _MAX_ID:
            raise invalid("logit_bias", "must have token ids as keys")
        checked[int(key)] = as_number(value, "logit_bias", -100, 100)
    return checked
