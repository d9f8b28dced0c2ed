"""A tokenizer from GGUF metadata: byte-level BPE and SentencePiece-style BPE.

Nothing built is kept on disk: 262,144 tokens build in 1.7 s and would load from a `tokenizer.json` in 1.0 s.
"""

from collections.abc import Mapping
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.shared.errors import ModelError
from headrace.shared.text.gguf_metadata import Value
from headrace.shared.text.token_bytes import SPACE
from headrace.shared.text.tokenizer import HfTokenizer

Metadata = Mapping[str, Value]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_gguf(metadata: Metadata) -> HfTokenizer:
    """The tokenizer of a GGUF file; raises ModelError naming the kind or pre-tokenizer it cannot build."""
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(metadata)
        elif kind == "llama":
            tokenizer = _sentencepiece(metadata)
        else:
            raise ModelError(f"tokenizer model {kind!r} is not supported (gpt2 and llama are)")
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the tokenizer metadata is incomplete or inconsistent: {error}") from error
    return HfTokenizer(
        tokenizer,
        bos=token_of(metadata, "bos"),
        eos=token_of(metadata, "eos"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def token_of(metadata: Metadata, name: str) -> str | None:
    """Spelling of the `bos`, `eos`, … token, or None when the file names none."""
    token = metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    return tokens[token] if isinstance(token, int) and 0 <= token < len(tokens) else None


def _byte_level(metadata: Metadata) -> Tokenizer:
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    merges = [_pair(line) for line in cast("list[str]", metadata["tokenizer.ggml.merges"])]
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    tokenizer = Tokenizer(
        models.BPE(_ids(tokens), merges, ignore_merges=pre in _LLAMA_NAMES, cache_capacity=_CACHE_WORDS)
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    if pre in _QWEN_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, metadata)
    return tokenizer


_CACHE_WORDS = 10_000
_LLAMA_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN_NAMES = ("qwen2", "deepseek-r1-qwen")


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in ("gpt-2", "default"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        return pre_tokenizers.Sequence(parts)
    if pre not in _LLAMA_NAMES + _QWEN_NAMES:
        raise ModelError(f"pre-tokenizer {pre!r} is not supported")
    words = _WORDS % ("{1,3}" if pre in _LLAMA_NAMES else "")
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right:
        raise ValueError(f"merge {line!r}")
    return left, right


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    scores = cast("list[float]", metadata["tokenizer.ggml.scores"])
    types = cast("list[int]", metadata["tokenizer.ggml.token_type"])
    ids = _ids(tokens)
    mergeable = {piece: ids[piece] for piece, kind in zip(tokens, types, strict=True) if kind == _NORMAL}
    unknown = token_of(metadata, "unknown")
    tokenizer = Tokenizer(
        models.BPE(ids, _merges(mergeable, scores), byte_fallback=True, fuse_unk=True, unk_token=unknown)
    )
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    marks = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marks]) if has_prefix else marks
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    _add_special(tokenizer, metadata)
    return tokenizer


def _merges(pieces: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to make one piece of two, best first: merging by rank then equals merging by score."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece, token in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                found.append((-scores[token], pieces[left], pieces[right], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {piece: token for token, piece in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ValueError("a token occurs twice")
    return ids


def _add_special(tokenizer: Tokenizer, metadata: Metadata) -> None:
    """Control tokens are special; user-defined ones are ordinary text that is matched before anything else."""
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    types = cast("list[int]", metadata.get("tokenizer.ggml.token_type", []))
    pairs = list(zip(tokens, types, strict=False))
    special = [AddedToken(text, normalized=False, special=True) for text, kind in pairs if kind in (_UNKNOWN, _CONTROL)]
    plain = [AddedToken(text, normalized=False, special=False) for text, kind in pairs if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
