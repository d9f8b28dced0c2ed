"""Keeps special tokens that a template wrote apart from the same characters inside text that came from outside.

Outside text is hidden before rendering: every special-token string in it loses its first character to a marker. After
rendering, special-token strings that are still whole are the template's own: they get a sealed spelling, then the
hidden ones are restored. A tokenizer that knows special tokens by their sealed spelling alone encodes the rest as text.
"""

import re
import secrets
from collections.abc import Iterable

_HIDDEN, _SEALED, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_DIGITS = "".join(chr(0xFDD4 + digit) for digit in range(16))
"""Markers are made of noncharacters only, so that no special token can occur inside one."""


class Guard:
    """The spellings of one tokenizer's special tokens."""

    def __init__(self, specials: Iterable[str]) -> None:
        ordered = sorted((text for text in specials if text), key=len, reverse=True)
        nonce = _spell(secrets.randbits(64))  # cannot be guessed from outside
        self._hidden_mark = f"{_HIDDEN}{nonce}{_HIDDEN}"
        self._sealed_mark = f"{_SEALED}{nonce}{_SEALED}"
        self._specials = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._hidden = re.compile(f"{self._hidden_mark}([{_DIGITS}]+){_CLOSE}")

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
        return self._hidden.sub(lambda found: chr(_number(found.group(1))), sealed)

    def spelling(self, special: str) -> str:
        """The sealed spelling of one special token."""
        return f"{self._sealed_mark}{special}{_CLOSE}"

    def _break(self, found: re.Match[str]) -> str:
        text = found.group()
        return f"{self._hidden_mark}{_spell(ord(text[0]))}{_CLOSE}{text[1:]}"


def _spell(number: int) -> str:
    return "".join(_DIGITS[int(digit, 16)] for digit in f"{number:x}")


def _number(spelled: str) -> int:
    return int("".join(f"{_DIGITS.index(digit):x}" for digit in spelled), 16)
