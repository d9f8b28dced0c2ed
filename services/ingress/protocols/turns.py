"""Chat messages → turns of the one conversation form. Knows every message shape clients send, no template."""

from typing import Literal

import msgspec

from headrace.ingress.protocols.fields import Fields, as_object, invalid, missing, unsupported, wrong_type
from headrace.shared.messages import ToolCall, Turn

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MEDIA = {"image_url", "input_audio", "file", "video_url", "image", "audio", "input_image", "input_file"}
_MAX_MESSAGES = 2048
_MAX_PARTS = 2048
_MAX_CALLS = 128
_MAX_DEPTH = 64


def read_turns(fields: Fields, model: str) -> tuple[tuple[Turn, ...], list[str]]:
    """All messages in order, and the names of message fields that had no effect."""
    raw = fields.array("messages", _MAX_MESSAGES)
    if raw is None:
        raise missing("messages")
    if not raw:
        raise invalid("messages", "must hold at least one message", "empty_array")
    turns: list[Turn] = []
    ignored: dict[str, None] = {}
    open_calls: list[str] = []
    for index, value in enumerate(raw):
        message = as_object(value, f"messages[{index}]")
        turn = _turn(message, model, open_calls)
        _follow_calls(turn, open_calls)
        turns.append(turn)
        ignored.update((f"messages.{path.rpartition('.')[2]}", None) for path in message.unread() if _has_weight(path))
    return tuple(turns), list(ignored)


def _has_weight(path: str) -> bool:
    # Assistant messages come back with the empty extras of our own replies.
    return not path.endswith((".annotations", ".refusal"))


def _turn(message: Fields, model: str, open_calls: list[str]) -> Turn:
    role = message.string("role")
    if role is None:
        raise missing(message.at("role"))
    if role not in _ROLES:
        raise invalid(message.at("role"), f"must be one of {', '.join(_ROLES)}")
    name = message.string("name", max_len=256)
    if role == "assistant":
        return _assistant(message, model, name)
    if role == "function":
        if name is None:
            raise missing(message.at("name"))
        text = _content(message, model, "\n") if message.is_set("content") else ""
        return Turn(role="tool", text=text, name=name, tool_call_id=open_calls[0] if len(open_calls) == 1 else None)
    if not message.is_set("content"):
        raise _no_content(message)
    text = _content(message, model, "\n")
    if role == "tool":
        return Turn(role="tool", text=text, name=name, tool_call_id=_answered_call(message, open_calls))
    return Turn(role=_ROLES[role], text=text, name=name)


def _no_content(message: Fields) -> Exception:
    if "content" in message.values:
        return wrong_type(message.at("content"), "a string or an array of parts", None)
    return missing(message.at("content"))


def _assistant(message: Fields, model: str, name: str | None) -> Turn:
    calls = _tool_calls(message)
    reasoning = message.string("reasoning_content")
    alias = message.string("reasoning")
    refusal = message.string("refusal")
    if message.is_set("audio"):
        raise unsupported(message.at("audio"), f"is not supported by model {model[:200]}", "unsupported_value")
    if message.is_set("content"):
        text = _content(message, model, "")
    elif calls or refusal is not None or reasoning is not None or alias is not None:
        text = refusal or ""
    else:
        raise _no_content(message)
    return Turn(
        role="assistant",
        text=text,
        name=name,
        reasoning=reasoning if reasoning is not None else alias,
        tool_calls=tuple(calls),
    )


def _content(message: Fields, model: str, joiner: str) -> str:
    content = message.take("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(message.at("content"), "a string or an array of parts", content)
    if not content:
        raise invalid(message.at("content"), "must hold at least one part", "empty_array")
    if len(content) > _MAX_PARTS:
        raise invalid(message.at("content"), f"must have at most {_MAX_PARTS} parts", "array_above_max_length")
    return joiner.join(_part(part, f"{message.at('content')}[{index}]", model) for index, part in enumerate(content))


def _part(value: object, path: str, model: str) -> str:
    if isinstance(value, str):
        return value
    part = as_object(value, path)
    kind = part.string("type")
    if kind is None:
        raise missing(part.at("type"))
    if kind in _MEDIA:
        raise unsupported(path, f"is {kind} content, which model {model[:200]} does not support", "unsupported_value")
    if kind not in {"text", "input_text", "output_text", "refusal"}:
        raise invalid(part.at("type"), "must be text or refusal")
    key = "refusal" if kind == "refusal" else "text"
    text = part.take(key)
    if not isinstance(text, str):
        raise wrong_type(part.at(key), "a string", text) if key in part.values else missing(part.at(key))
    return text


def _tool_calls(message: Fields) -> list[ToolCall]:
    raw = message.array("tool_calls", _MAX_CALLS) or []
    calls = [_tool_call(as_object(call, f"{message.at('tool_calls')}[{index}]")) for index, call in enumerate(raw)]
    legacy = message.nested("function_call")
    if legacy is not None:
        calls.append(_function(legacy, f"call_{message.path.removeprefix('messages[').removesuffix(']')}"))
    return calls


def _tool_call(call: Fields) -> ToolCall:
    kind = call.string("type")
    if kind not in (None, "function"):
        raise unsupported(call.at("type"), "must be function", "unsupported_value")
    call_id = call.string("id", min_len=1, max_len=256)
    if call_id is None:
        raise missing(call.at("id"))
    function = call.nested("function")
    if function is None:
        raise missing(call.at("function"))
    return _function(function, call_id)


def _function(function: Fields, call_id: str) -> ToolCall:
    name = function.string("name", min_len=1, max_len=256)
    if name is None:
        raise missing(function.at("name"))
    arguments = function.take("arguments")
    if not isinstance(arguments, str | dict | None):
        raise wrong_type(function.at("arguments"), "a string", arguments)
    if isinstance(arguments, dict):
        check_free_form(arguments, function.at("arguments"))
        return ToolCall(id=call_id, name=name, arguments=arguments)
    return ToolCall(id=call_id, name=name, arguments=_parsed(arguments or ""))


def _parsed(arguments: str) -> dict[str, object] | str:
    """The object in the string, or the string itself when it holds none that can travel on."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and can_travel(value) else arguments


def _answered_call(message: Fields, open_calls: list[str]) -> str:
    call_id = message.string("tool_call_id", max_len=256)
    if call_id is not None:
        return call_id
    if len(open_calls) == 1:
        return open_calls[0]
    raise missing(message.at("tool_call_id"))


def _follow_calls(turn: Turn, open_calls: list[str]) -> None:
    """Keep the ids of calls that no tool message has answered yet."""
    if turn.role == "assistant":
        open_calls[:] = [call.id for call in turn.tool_calls]
    elif turn.tool_call_id in open_calls:
        open_calls.remove(turn.tool_call_id)


def check_free_form(value: object, path: str) -> None:
    """Refuse free-form JSON that later stages could not walk or pack."""
    if not can_travel(value):
        raise invalid(path, f"must be nested at most {_MAX_DEPTH} levels deep and hold integers of at most 64 bits")


def can_travel(value: object) -> bool:
    """Whether every integer fits 64 bits and nothing is nested too deep for the queues."""
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for node in level:
            if isinstance(node, int) and not -(2**63) <= node < 2**64:
                return False
            if isinstance(node, dict | list):
                below.extend(node.values() if isinstance(node, dict) else node)
        if not below:
            return True
        level = below
    return False
