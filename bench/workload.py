"""What is asked: prompts and lengths, the same for every server and reproducible from a seed. Pure."""

import random
from dataclasses import dataclass, replace

Span = tuple[int, int]
"""Shortest and longest, both included."""

_TEXT = """
river mill stone wheel water grain gate spring valley bridge field road town market hill forest lake sea wind rain
snow summer winter morning evening garden kitchen table window door wall roof floor chair paper pen letter page song
dance paint color light shadow sound voice language number line circle point square heart mind dream story fire earth
metal gold silver iron wood glass bread milk salt sugar fruit apple tree leaf root seed flower grass horse bird fish
dog cat bear king queen doctor teacher farmer worker driver player writer reader speaker ship train
"""
_WORDS = _TEXT.split()
"""Common words, for most tokenizers one token each after a space."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A closed load: so many clients, each sending its next request when the last one ended."""

    clients: int
    num_requests: int
    words: int | Span = 100
    """Words of a prompt that no other prompt has."""
    out: int | Span = 64
    """Tokens to generate."""
    shared_words: int = 0
    """Words that all prompts open with, before those of their own."""


def asks(shape: Shape, seed: str) -> list[Ask]:
    """The requests of one load, in the order they are sent."""
    rng = random.Random(seed)
    shared = rng.choices(_WORDS, k=shape.shared_words)
    num_words = _lengths(shape.words, shape.num_requests, rng)
    num_tokens = _lengths(shape.out, shape.num_requests, rng)
    return [
        Ask(" ".join(shared + rng.choices(_WORDS, k=words)), tokens)
        for words, tokens in zip(num_words, num_tokens, strict=True)
    ]


def quickened(shape: Shape) -> Shape:
    """The same load with about a third of the requests, but each client has one."""
    return replace(shape, num_requests=max(shape.clients, shape.num_requests // 3))


def _lengths(length: int | Span, count: int, rng: random.Random) -> list[int]:
    """`count` lengths; a span is covered evenly, in random order, so that every run does the same work."""
    if isinstance(length, int):
        return [length] * count
    low, high = length
    spread = [low + int((high - low + 1) * (index + 0.5) / count) for index in range(count)]
    rng.shuffle(spread)
    return spread
