"""Text to token ids and back: the tokenizer interface and its implementation over the `tokenizers` library.

Knows no model files (see `hf_files`, `gguf_tokenizer`) and no templates.
"""

import json
import threading
from collections.abc import Sequence
from typing import Protocol

import tokenizers

from headrace.shared.text.escape import Guard
from headrace.shared.text.token_bytes import TokenBytes


class Tokenizer(Protocol):
    """What the rest of headrace knows of a tokenizer. All methods may be called from several threads."""

    vocab_size: int
    """Ids are 0 … vocab_size - 1."""
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    """Whether `add_special` puts `bos_id` in front."""
    special_ids: frozenset[int]
    """Control tokens: hidden from output unless asked for."""
    guard: Guard

    def encode(self, text: str, *, add_special: bool, escape: bool = False) -> list[int]:
        """Token ids of `text`. `escape`: only the sealed spelling (see `Guard`) of a special token is one.

        Raises UnicodeEncodeError on lone surrogates.
        """

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes a token stands for; empty for an id outside the vocabulary."""

    def token_text(self, token: int) -> str:
        """The token's own spelling in the vocabulary; empty for an id outside it."""


class HfTokenizer:
    """Tokenizer over a `tokenizers.Tokenizer`."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        bos: str | None = None,
        eos: str | None = None,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
    ) -> None:
        """`bos` and `eos` are token spellings; None in `add_*` keeps what the tokenizer's post-processor does."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._sealed: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        special = {token: entry.content for token, entry in added.items() if entry.special}
        self.bos_id = None if bos is None else tokenizer.token_to_id(bos)
        self.eos_id = None if eos is None else tokenizer.token_to_id(eos)
        self.vocab_size = max(tokenizer.get_vocab_size(with_added_tokens=True), *(token + 1 for token in added), 1)
        self.special_ids = frozenset(special) | {token for token in (self.bos_id, self.eos_id) if token is not None}
        self.guard = Guard(special.values())
        self._prefix, self._suffix = self._affixes(add_bos, add_eos)
        self.adds_bos = self.bos_id is not None and self._prefix[:1] == [self.bos_id]
        self._bytes = TokenBytes(tokenizer)

    def encode(self, text: str, *, add_special: bool, escape: bool = False) -> list[int]:
        """See `Tokenizer`."""
        text.encode()  # lone surrogates would raise a less telling error below
        tokenizer = self._sealed_twin() if escape else self._tokenizer
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See `Tokenizer`."""
        shown = [token for token in ids if not (skip_special and token in self.special_ids)]
        text = b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")
        return text[1:] if self._bytes.strips_space and text.startswith(" ") else text

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer`."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """See `Tokenizer`."""
        return self._tokenizer.id_to_token(token) or "" if 0 <= token < self.vocab_size else ""

    def _affixes(self, add_bos: bool | None, add_eos: bool | None) -> tuple[list[int], list[int]]:
        """What `add_special` puts before and after the ids of a text."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        num_before = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
        prefix, suffix = full[:num_before], full[num_before + len(plain) :]
        return _with_flag(prefix, self.bos_id, add_bos), _with_flag(suffix, self.eos_id, add_eos)

    def _sealed_twin(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._sealed is None:
                self._sealed = tokenizers.Tokenizer.from_str(_respelled(self._tokenizer, self.guard))
            return self._sealed


def _with_flag(ids: list[int], token: int | None, wanted: bool | None) -> list[int]:
    if wanted is None or token is None or (token in ids) == wanted:
        return ids
    return [token] if wanted else [known for known in ids if known != token]


def _respelled(tokenizer: tokenizers.Tokenizer, guard: Guard) -> str:
    """The tokenizer's JSON with every special token in its sealed spelling, ids unchanged."""
    spec = json.loads(tokenizer.to_str())
    names = {entry["content"]: guard.spelling(entry["content"]) for entry in spec["added_tokens"] if entry["special"]}
    for entry in spec["added_tokens"]:
        entry["content"] = names.get(entry["content"], entry["content"])
    model = spec["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): token for piece, token in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    spec["post_processor"] = None
    return json.dumps(spec)
