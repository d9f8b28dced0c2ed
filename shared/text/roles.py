"""What roles a chat template can render, found by trying, and how a conversation is repaired for what it cannot.

Knows turns and a render function; neither processes nor token ids.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

import msgspec

from headrace.shared.messages import ToolCall, Turn

Render = Callable[[list[dict[str, object]]], str | None]
"""Renders messages, or gives None when the template fails on them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template renders as it stands. The default repairs nothing."""

    accepts_system: bool = True
    accepts_late_system: bool = True
    """A system turn after the first."""
    needs_alternation: bool = False
    """Two neighbours of one role fail."""
    supports_tool_role: bool = True
    supports_tool_calls: bool = True


def probe(source: str, render: Render) -> Capabilities:
    """Try a template on small conversations. One that fails on a single user turn is left as it is."""
    user, answer = Turn(role="user", text="probe user"), Turn(role="assistant", text="probe answer")
    system = Turn(role="system", text="probe system")
    call = Turn(role="assistant", tool_calls=(ToolCall(id="probe00000", name="probe_call", arguments={}),))
    result = Turn(role="tool", text="probe result", tool_call_id="probe00000", name="probe_call")

    def shows(text: str, *turns: Turn) -> bool:
        rendered = render(to_messages(turns))
        return rendered is not None and text in rendered

    if render(to_messages([user])) is None:
        return Capabilities()
    knows_tools = "tool" in source
    return Capabilities(
        accepts_system=shows(system.text, system, user),
        accepts_late_system=shows(system.text, user, answer, system, user),
        needs_alternation=not shows(user.text, user, user),
        supports_tool_role=knows_tools and shows(result.text, user, call, result),
        supports_tool_calls=knows_tools and shows("probe_call", user, call),
    )


def repair(turns: Iterable[Turn], can: Capabilities) -> list[Turn]:
    """Express a conversation in what the template can render; text order is kept."""
    repaired = list(turns)
    if not can.supports_tool_calls:
        repaired = [_calls_as_text(turn) for turn in repaired]
    if not can.supports_tool_role:
        repaired = _tool_results_as_user(repaired)
    if not can.accepts_system:
        repaired = _system_into_user(repaired)
    elif not can.accepts_late_system:
        repaired = _system_first(repaired)
    if can.needs_alternation:
        repaired = _alternating(repaired)
    return repaired


def to_messages(turns: Iterable[Turn]) -> list[dict[str, object]]:
    """Turns as the plain JSON values templates expect: content is always a string, arguments always an object."""
    return [_to_message(turn) for turn in turns]


def _to_message(turn: Turn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role, "content": turn.text}
    if turn.name is not None:
        message["name"] = turn.name
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    if turn.reasoning is not None:
        message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), turn.reasoning)
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in turn.tool_calls
        ]
    return message


def _arguments(call: ToolCall) -> dict[str, object]:
    return call.arguments if isinstance(call.arguments, dict) else {}


def _calls_as_text(turn: Turn) -> Turn:
    """Hermes form, the one most models without tool support of their own have seen."""
    if not turn.tool_calls:
        return turn
    lines = [turn.text] if turn.text else []
    for call in turn.tool_calls:
        body = json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)
        lines.append(f"<tool_call>\n{body}\n</tool_call>")
    return msgspec.structs.replace(turn, text="\n".join(lines), tool_calls=())


def _tool_results_as_user(turns: list[Turn]) -> list[Turn]:
    repaired: list[Turn] = []
    for is_tool, group in groupby(turns, key=lambda turn: turn.role == "tool"):
        if is_tool:
            results = [f"<tool_response>\n{turn.text}\n</tool_response>" for turn in group]
            repaired.append(Turn(role="user", text="\n".join(results)))
        else:
            repaired.extend(group)
    return repaired


def _system_first(turns: list[Turn]) -> list[Turn]:
    systems = [turn for turn in turns if turn.role == "system"]
    others = [turn for turn in turns if turn.role != "system"]
    return [_joined(systems), *others] if systems else others


def _system_into_user(turns: list[Turn]) -> list[Turn]:
    """The system text goes in front of the first user turn, or becomes one."""
    text = "\n\n".join(turn.text for turn in turns if turn.role == "system")
    others = [turn for turn in turns if turn.role != "system"]
    if not text:
        return others
    for index, turn in enumerate(others):
        if turn.role == "user":
            others[index] = msgspec.structs.replace(turn, text=_paragraphs([text, turn.text]))
            return others
    return [Turn(role="user", text=text), *others]


def _alternating(turns: list[Turn]) -> list[Turn]:
    """Neighbours of one role become one turn; tool results stay apart, each answers its own call."""
    repaired: list[Turn] = []
    for role, group in groupby(turns, key=lambda turn: turn.role):
        neighbours = list(group)
        repaired.extend(neighbours if role == "tool" else [_joined(neighbours)])
    return repaired


def _joined(turns: list[Turn]) -> Turn:
    """One turn out of neighbours of one role."""
    if len(turns) == 1:
        return turns[0]
    reasoning = _paragraphs(turn.reasoning for turn in turns)
    return msgspec.structs.replace(
        turns[0],
        text=_paragraphs(turn.text for turn in turns),
        reasoning=reasoning or None,
        tool_calls=tuple(call for turn in turns for call in turn.tool_calls),
    )


def _paragraphs(texts: Iterable[str | None]) -> str:
    return "\n\n".join(text for text in texts if text)
