"""The tokenizer of the `scripted` model: one id per byte, six control tokens, no vocabulary file."""

import re
from collections.abc import Sequence

from headrace.shared.text.escape import Guard

_NUM_BYTES = 256
_SPECIALS = ("<s>", "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_ID_OF = {text: _NUM_BYTES + index for index, text in enumerate(_SPECIALS)}


class ScriptedTokenizer:
    """Implements `Tokenizer`: ids 0–255 are bytes, then BOS, EOS, `<think>`, `</think>`, `<tool_call>`, `</tool_call>`.

    The four markers are recognised in text; BOS and EOS have no spelling that text could contain.
    """

    def __init__(self) -> None:
        self.vocab_size = _NUM_BYTES + len(_SPECIALS)
        self.bos_id: int | None = _ID_OF["<s>"]
        self.eos_id: int | None = _ID_OF["</s>"]
        self.adds_bos = False
        self.special_ids = frozenset(_ID_OF.values())
        markers = _SPECIALS[2:]
        self.guard = Guard(markers)
        self._marker = _alternation({text: text for text in markers})
        self._sealed = {self.guard.spelling(text): text for text in markers}
        self._sealed_marker = _alternation(self._sealed)

    def encode(self, text: str, *, add_special: bool, escape: bool = False) -> list[int]:  # noqa: ARG002
        """See `Tokenizer`; this one adds no special tokens."""
        pattern = self._sealed_marker if escape else self._marker
        ids: list[int] = []
        for part in pattern.split(text):
            marker = self._sealed.get(part) if escape else part
            ids.extend([_ID_OF[marker]] if marker in _SPECIALS[2:] else part.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See `Tokenizer`."""
        shown = (token for token in ids if not (skip_special and token in self.special_ids))
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer`."""
        if 0 <= token < _NUM_BYTES:
            return bytes([token])
        return self.token_text(token).encode()

    def token_text(self, token: int) -> str:
        """See `Tokenizer`; bytes are spelled `<0xNN>` unless they are printable ASCII."""
        if not 0 <= token < self.vocab_size:
            return ""
        if token >= _NUM_BYTES:
            return _SPECIALS[token - _NUM_BYTES]
        return chr(token) if 0x20 < token < 0x7F else f"<0x{token:02X}>"


def _alternation(texts: dict[str, str]) -> re.Pattern[str]:
    return re.compile("(" + "|".join(map(re.escape, texts)) + ")")
