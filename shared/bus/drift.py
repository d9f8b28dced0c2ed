"""Compare a wanted stream or consumer with the one found, as lines an operator can act on.

Knows specs only; where the found one comes from is each implementation's business.
"""

from dataclasses import fields, replace

from headrace.shared.bus import ConsumerSpec, StreamSpec

_SAME_S = 1e-6
"""Servers keep nanoseconds, specs hold float seconds."""


def stream_drift(wanted: StreamSpec, found: StreamSpec) -> list[str]:
    """One line per field that differs, `stream RUN: max_age_s is 60, expected 1800`."""
    return _lines(f"stream {wanted.name}", _normal(wanted), _normal(found))


def consumer_drift(wanted: ConsumerSpec, found: ConsumerSpec) -> list[str]:
    """One line per field that differs, `consumer TOKQ/tok-int: ack_wait_s is 5, expected 10`."""
    return _lines(f"consumer {wanted.stream}/{wanted.name}", wanted, found)


def _normal(spec: StreamSpec) -> StreamSpec:
    per_subject = 1 if spec.work_queue else spec.max_per_subject
    return replace(spec, subjects=tuple(sorted(spec.subjects)), max_per_subject=per_subject)


def _lines(title: str, wanted: StreamSpec | ConsumerSpec, found: StreamSpec | ConsumerSpec) -> list[str]:
    lines = []
    for each in fields(wanted):
        expected, actual = getattr(wanted, each.name), getattr(found, each.name)
        if not _is_same(expected, actual):
            lines.append(f"{title}: {each.name} is {_shown(actual)}, expected {_shown(expected)}")
    return lines


def _is_same(expected: object, actual: object) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        return abs(expected - actual) < _SAME_S
    return expected == actual


def _shown(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)
