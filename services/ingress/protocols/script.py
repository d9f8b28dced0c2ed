"""`x_script`: what the `scripted` model is told to play."""

from headrace.ingress.protocols.fields import Fields, as_integer, as_object, invalid, unsupported, wrong_type
from headrace.shared.messages import Script, ScriptStep

_ACTIONS = ("text", "ids", "pause_ms", "eos", "random", "fault")
_MAX_STEPS = 10_000
_MAX_IDS = 100_000
_FAULTS = ("exit", "hang", "raise")


def read_script(fields: Fields, model: str) -> Script | None:
    """The script of a body; refused unless the model plays scripts."""
    script = fields.nested("x_script")
    if script is None:
        return None
    if model != "scripted":
        raise unsupported("x_script", "works only with the model scripted")
    choices = script.array("choices", 1) or []
    read = Script(
        choices=tuple(_choice(choice, f"x_script.choices[{index}]") for index, choice in enumerate(choices)),
        repeat=script.boolean("repeat"),
        show_prompt=script.boolean("show_prompt"),
    )
    _refuse_unread(script)
    return read


def _choice(steps: object, path: str) -> tuple[ScriptStep, ...]:
    if not isinstance(steps, list):
        raise wrong_type(path, "an array", steps)
    if len(steps) > _MAX_STEPS:
        raise invalid(path, f"must have at most {_MAX_STEPS} elements", "array_above_max_length")
    return tuple(_step(as_object(step, f"{path}[{index}]")) for index, step in enumerate(steps))


def _step(step: Fields) -> ScriptStep:
    if sum(step.is_set(name) for name in _ACTIONS) != 1:
        raise invalid(step.path, f"must have exactly one of {', '.join(_ACTIONS)}")
    ids = step.array("ids", _MAX_IDS)
    attempts = step.integer("attempts", 1, 1000)
    fault = step.choice("fault", _FAULTS)
    read = ScriptStep(
        text=step.string("text"),
        ids=None if ids is None else tuple(as_integer(value, step.at("ids"), 0, 2**32 - 1) for value in ids),
        pause_ms=step.integer("pause_ms", 0, 3_600_000),
        eos=step.boolean("eos"),
        random=step.integer("random", 1, _MAX_IDS),
        fault=fault,  # type: ignore[arg-type]  # `choice` allows exactly the literal's values
        attempts=attempts or 1,
    )
    _refuse_unread(step)
    return read


def _refuse_unread(fields: Fields) -> None:
    for path in fields.unread():
        raise unsupported(path, "is not a known script field")
