"""Reading a JSON object field by field with errors that name the field. Knows JSON types, no protocol.

Null means absent. Whole floats count as integers; booleans and numeric strings do not. What nobody read is reported as
ignored.
"""

from headrace.shared.errors import Code, RequestError

_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array", dict: "an object"}


class Fields:
    """One JSON object under a dotted path (empty for the body itself)."""

    def __init__(self, values: dict[str, object], path: str = "") -> None:
        self.values = values
        self.path = path
        self._read: set[str] = set()

    def at(self, name: str) -> str:
        """Dotted path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str) -> object:
        """The raw value, None when null or absent."""
        self._read.add(name)
        return self.values.get(name)

    def is_set(self, name: str) -> bool:
        """Whether the field is there and not null; does not count as read."""
        return self.values.get(name) is not None

    def unread(self) -> list[str]:
        """Paths of fields with a value that nobody took."""
        return [self.at(name) for name, value in self.values.items() if value is not None and name not in self._read]

    def boolean(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.at(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer within [low, high]."""
        value = self.take(name)
        return None if value is None else as_integer(value, self.at(name), low, high)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number within [low, high]."""
        value = self.take(name)
        return None if value is None else as_number(value, self.at(name), low, high)

    def string(self, name: str, *, min_len: int = 0, max_len: int | None = None) -> str | None:
        """A string of at most `max_len` characters."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong_type(self.at(name), "a string", value)
        if len(value) < min_len:
            raise invalid(self.at(name), f"must have at least {min_len} characters", "string_below_min_length")
        if max_len is not None and len(value) > max_len:
            raise invalid(self.at(name), f"must have at most {max_len} characters", "string_above_max_length")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """One of a few strings."""
        value = self.string(name)
        if value is not None and value not in allowed:
            raise invalid(self.at(name), f"must be one of {', '.join(allowed)}")
        return value

    def nested(self, name: str) -> "Fields | None":
        """A nested object."""
        value = self.take(name)
        return None if value is None else as_object(value, self.at(name))

    def array(self, name: str, max_len: int) -> list[object] | None:
        """An array of at most `max_len` elements."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self.at(name), "an array", value)
        if len(value) > max_len:
            raise invalid(self.at(name), f"must have at most {max_len} elements", "array_above_max_length")
        return value


def as_object(value: object, path: str) -> Fields:
    """A value that must be an object."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return Fields(value, path)


def as_integer(value: object, path: str, low: int, high: int) -> int:
    """A value that must be an integer within [low, high]."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path, "an integer", value)
    _check_range(value, path, low, high, "integer")
    return value


def as_number(value: object, path: str, low: float, high: float) -> float:
    """A value that must be a number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path, "a number", value)
    _check_range(value, path, low, high, "decimal")
    return float(value)


def _check_range(value: float, path: str, low: float, high: float, kind: str) -> None:
    if value < low:
        raise invalid(path, f"must be at least {low}", f"{kind}_below_min_value")
    if not value <= high:
        raise invalid(path, f"must be at most {high}", f"{kind}_above_max_value")


def wrong_type(path: str, expected: str, value: object) -> RequestError:
    """The value has another JSON type than the protocol says."""
    kind = _KINDS.get(type(value), "null")
    message = f"{path} must be {expected}, not {kind}"
    return RequestError(Code.INVALID_REQUEST, message, param=path, detail="invalid_type")


def invalid(path: str, rule: str, detail: str = "invalid_value") -> RequestError:
    """The value breaks a rule, worded to follow the path (`must be at least 1`)."""
    return RequestError(Code.INVALID_REQUEST, f"{path} {rule}", param=path, detail=detail)


def missing(path: str) -> RequestError:
    """A required field is not there."""
    return RequestError(Code.INVALID_REQUEST, f"{path} is required", param=path, detail="missing_required_parameter")


def unsupported(path: str, reason: str, detail: str = "unsupported_parameter") -> RequestError:
    """A feature that this server does not have."""
    return RequestError(Code.UNSUPPORTED, f"{path} {reason}", param=path, detail=detail)
