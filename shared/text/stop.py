"""Stop strings over text that arrives in pieces. Knows no tokens."""

from collections.abc import Iterable


class StopMatcher:
    """Stops at the first piece that completes a stop string: the earliest position wins, among equals the longest.

    Held back is the longest suffix that is a proper prefix of a stop string; what was released is never taken back.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        """`include` leaves the matched string in the released text. Raises ValueError on an empty stop string."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("stop strings must not be empty")
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take text in; return (released text, matched stop string or None). Push nothing more after a match."""
        if not self._stops:
            return text, None
        text = self._held + text
        found = self._earliest(text)
        if found is not None:
            start, stop = found
            self._held = ""
            return text[: start + len(stop)] if self._include else text[:start], stop
        keep = min(_partial_start(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """End of input: what was held back turned out to be ordinary text."""
        text, self._held = self._held, ""
        return text

    def _earliest(self, text: str) -> tuple[int, str] | None:
        hits = [(text.find(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if not hits:
            return None
        start, _, stop = min(hits)
        return start, stop


def _partial_start(text: str, stop: str) -> int:
    """Where the longest suffix of `text` that is a proper prefix of `stop` begins; `len(text)` if there is none."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return start if start >= 0 else len(text)
