"""The contract between the front door and a dialect: parse a body once, render records as frames or as one reply.

Dialects are pure: they see neither connections nor queues. Frames are a function of the run log alone, so a resumed
stream repeats them byte for byte.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.ingress.dialect import Problem
from headrace.ingress.protocols.fields import Fields
from headrace.shared import messages
from headrace.shared.messages import Prompt, Sampling, Script
from headrace.shared.records import FinRecord, TokRecord


@dataclass(frozen=True, slots=True)
class Terms:
    """What a dialect may know of the server while it parses."""

    seed: int
    """Drawn for this request; used when the caller gives none."""
    max_output_tokens: int = 0
    """Most tokens one request may ask for; 0 is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A validated body in terms of the queue messages."""

    model: str
    prompt: Prompt
    sampling: Sampling
    max_new: int | None
    stream: bool
    render: bytes
    """The dialect's own render options (msgpack), kept in the run log and handed back to `Adapter.encoder`."""
    return_token_ids: bool = False
    cache_salt: str = ""
    session: str = ""
    script: Script | None = None
    ignored: tuple[str, ...] = ()
    """Paths of fields that had no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every frame of a reply repeats."""

    rid: str
    created: int
    """Unix seconds."""
    model: str
    fingerprint: str


class Encoder(Protocol):
    """Renders one request's records. Frames are complete, ready to be written."""

    def tok(self, record: TokRecord) -> list[bytes]:
        """Frames of one append; none while it shows nothing."""

    def fin(self, record: FinRecord) -> list[bytes]:
        """Frames that end a stream well."""

    def failure(self, problem: Problem) -> list[bytes]:
        """Frames that end a stream after a failure."""

    def reply(self, toks: Sequence[TokRecord], fin: FinRecord) -> bytes:
        """The whole answer as one JSON body; on a fresh encoder only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One dialect's generation route."""

    protocol: messages.Protocol
    path: str
    """Route below `/v1`, also served without the prefix."""
    prompt_param: str
    """What the dialect calls the prompt in errors."""
    parse: Callable[[Fields, Terms], Parsed]
    """Raises RequestError naming the field at fault."""
    encoder: Callable[[Head, bytes], Encoder]
    """`encoder(head, render)`."""
