"""Which bytes a token stands for, found from the tokenizer's decoder: byte-level, SentencePiece-style, or by trial."""

import json
import re
from collections.abc import Iterator

import tokenizers

SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Exact bytes of single tokens, remembered; concatenated they are the text of a sequence."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        steps = {step["type"]: step for step in _decoder_steps(tokenizer)}
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._is_byte_level = "ByteLevel" in steps
        self._has_byte_tokens = "ByteFallback" in steps
        self._has_space_marks = "Metaspace" in steps or SPACE in json.dumps(steps.get("Replace"), ensure_ascii=False)
        self._known: dict[int, bytes] = {}
        self.strips_space = "Strip" in steps or _prepends(steps.get("Metaspace"))
        """Whether encoding puts a space in front of a text, which decoding a whole sequence takes away."""

    def __getitem__(self, token: int) -> bytes:
        """Empty for an id outside the vocabulary."""
        data = self._known.get(token)
        if data is None:
            piece = self._tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
            if piece is None:
                return b""
            data = self._known[token] = self._find(token, piece)
        return data

    def _find(self, token: int, piece: str) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return (piece.replace(SPACE, " ") if self._has_space_marks and not added.special else piece).encode()
        if self._is_byte_level:
            return b"".join(_BYTE_OF.get(char, char.encode()) for char in piece)
        found = _BYTE_TOKEN.fullmatch(piece) if self._has_byte_tokens else None
        if found is not None:
            return bytes([int(found.group(1), 16)])
        if self._has_space_marks:
            return piece.replace(SPACE, " ").encode()
        return self._by_trial(token)

    def _by_trial(self, token: int) -> bytes:
        """What the library's decoder adds for this token after a token that stands for a plain word."""
        anchor = next(iter(self._tokenizer.encode("a", add_special_tokens=False).ids), token)
        alone: str = self._tokenizer.decode([anchor], skip_special_tokens=False)
        both: str = self._tokenizer.decode([anchor, token], skip_special_tokens=False)
        return both.removeprefix(alone).encode()


def byte_alphabet() -> dict[int, str]:
    """The printable character that byte-level vocabularies write for each byte: itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(substitutes)) for byte in range(256)}


_BYTE_OF = {char: bytes([byte]) for byte, char in byte_alphabet().items()}


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> Iterator[dict[str, object]]:
    if tokenizer.decoder is None:
        return
    spec = json.loads(tokenizer.decoder.__getstate__())
    yield from spec["decoders"] if spec["type"] == "Sequence" else [spec]


def _prepends(metaspace: dict[str, object] | None) -> bool:
    return metaspace is not None and metaspace.get("prepend_scheme") != "never"
