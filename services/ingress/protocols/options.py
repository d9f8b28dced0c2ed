"""What all OpenAI dialects share beside prompt and sampling: stream options, hints, validated and echoed fields."""

import re

import msgspec

from headrace.ingress.protocols.fields import Fields, invalid, missing, unsupported, wrong_type

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_MAX_METADATA = 16
_MAX_SALT = 1024
_MAX_SESSION = 512
_MAX_NAME = 512


class Render(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a reply is rendered, as kept in the run log."""

    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    suffix: str = ""
    """The caller's own id, appended to the id of the reply."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Shared fields, read."""

    stream: bool
    render: Render
    cache_salt: str
    session: str
    ignored: tuple[str, ...]


def read_model(fields: Fields) -> str:
    """The model's name."""
    model = fields.string("model", max_len=_MAX_NAME)
    if not model:
        raise missing("model")
    return model


def read_shared(fields: Fields) -> Shared:
    """Everything that is neither prompt nor sampling nor limit."""
    stream = fields.boolean("stream")
    include_usage, continuous, ignored = _stream_options(fields, is_stream=stream)
    _check_metadata(fields)
    fields.choice("service_tier", _TIERS)
    fields.boolean("parallel_tool_calls", default=True)
    session = fields.string("session_id", max_len=_MAX_SESSION)
    cache_key = fields.string("prompt_cache_key", max_len=_MAX_SESSION)
    return Shared(
        stream=stream,
        render=Render(
            include_usage=include_usage,
            continuous_usage=continuous,
            token_ids=fields.boolean("return_token_ids"),
            suffix=_request_id(fields),
        ),
        cache_salt=fields.string("cache_salt", min_len=1, max_len=_MAX_SALT) or "",
        session=session or cache_key or "",
        ignored=tuple(ignored),
    )


def _stream_options(fields: Fields, *, is_stream: bool) -> tuple[bool, bool, list[str]]:
    options = fields.nested("stream_options")
    if options is None:
        return False, False, []
    if not is_stream:
        raise invalid("stream_options", "is allowed only when stream is true")
    include_usage = options.boolean("include_usage")
    continuous = options.boolean("continuous_usage_stats")
    return include_usage, continuous, options.unread()


def _check_metadata(fields: Fields) -> None:
    metadata = fields.nested("metadata")
    if metadata is None:
        return
    if len(metadata.values) > _MAX_METADATA:
        raise invalid("metadata", f"must have at most {_MAX_METADATA} entries", "object_above_max_properties")
    for key, value in metadata.values.items():
        if not isinstance(value, str):
            raise wrong_type("metadata", "an object of strings", value)
        if len(key) > 64 or len(value) > 512:
            raise invalid("metadata", "must have keys of at most 64 and values of at most 512 characters")


def _request_id(fields: Fields) -> str:
    request_id = fields.string("request_id")
    if request_id is None:
        return ""
    if not _REQUEST_ID.fullmatch(request_id):
        raise invalid("request_id", "must have 1 to 64 letters, digits, dashes or underscores")
    return request_id


def refuse_true(fields: Fields, name: str, reason: str) -> None:
    """Refuse a switch that is on."""
    if fields.boolean(name):
        raise unsupported(name, reason)
