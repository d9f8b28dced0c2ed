"""Keeps special tokens that a template wrote apart from the same characters inside text that came from outside.

Outside text is hidden before rendering: every special-token string in it loses its first character to a marker. After
rendering, special-token strings that are still whole are the template's own: they get a sealed spelling, then the
hidden ones are restored. A tokenizer that knows special tokens by their sealed spelling alone encodes the rest as text.
"""

import re
import secrets
from collections.abc import Iterable

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters; the nonce between them cannot be guessed from outside."""


class Guard:
    """The spellings of one tokenizer's special tokens."""

    def __init__(self, specials: Iterable[str]) -> None:
        ordered = sorted((text for text in specials if text), key=len, reverse=True)
        nonce = secrets.token_hex(8)
        self._hidden_mark = f"{_OPEN}{nonce}h"
        self._sealed_mark = f"{_OPEN}{nonce}s"
        self._specials = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._hidden = re.compile(f"{self._hidden_mark}([0-9a-f]+){_CLOSE}")

    def hide(self, text: str) -> str:
        """Break every special-token string in outside text, overlapping ones included."""
        while self._specials.search(text):
            text = self._specials.sub(self._break, text)
        return text

    def hide_all(self, value: object) -> object:
        """Hide all strings (keys too) inside a JSON value."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide_all(key): self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return value

    def seal(self, text: str) -> str:
        """Give whole special-token strings their sealed spelling and restore the hidden ones."""
        sealed = self._specials.sub(lambda found: self.spelling(found.group()), text)
        return self._hidden.sub(lambda found: chr(int(found.group(1), 16)), sealed)

    def spelling(self, special: str) -> str:
        """The sealed spelling of one special token."""
        return f"{self._sealed_mark}{special}{_CLOSE}"

    def _break(self, found: re.Match[str]) -> str:
        text = found.group()
        return f"{self._hidden_mark}{ord(text[0]):x}{_CLOSE}{text[1:]}"
