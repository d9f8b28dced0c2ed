"""The run log of one request: the records under `run.<ing>.<rid>.*` and the typed events inside them.

The log is the only truth about a request. `req` is written by ingress at acceptance, `lease` by whoever wants the right
to write, `tok` by decode workers alone, `fin` once by the holder of the newest lease, `cancel` and `own` by ingress.
"""

from typing import Literal

import msgspec

from headrace.shared.errors import Failure

Cause = Literal["eos", "stop", "length", "context", "cancelled", "error"]
"""Why a choice ended: end token, stop string or stop id, token limit, context full, cancel, failure."""


class ReqRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`req`: what is needed to render, resume and check the owner of a request without the client's body."""

    tenant: str
    protocol: str
    model: str
    revision: str = ""
    created_ms: int = 0
    total_s: float = 600.0
    render: msgspec.Raw = msgspec.Raw(b"\x80")
    """The dialect's own render options, opaque to everybody but that dialect."""
    body_hash: bytes = b""
    v: int = 1


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`lease`: the right to write, taken by compare-and-set; its stream sequence is the fencing token."""

    wid: str
    attempt: int
    """1 on the first lease; see `attempts`."""
    nonce: bytes
    item_seq: int = 0
    """Stream sequence of the work item this lease was taken for; 0 when no item is held (ingress, router)."""
    released: bool = False
    """The holder gave the request up on purpose: whoever comes next follows no death."""
    v: int = 1


class TextEvent(msgspec.Struct, frozen=True, tag="text"):
    """Visible text."""

    s: str


class EndEvent(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The end of one choice; `match` is the stop string or stop id that ended it."""

    cause: Cause
    match: str | int | None = None


Event = TextEvent | EndEvent


class TextState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Checkpoint of the text pipeline after a record: a successor's replay must arrive at the same numbers."""

    chars: int = 0
    """Visible characters released so far."""
    parser: int = 1
    """Version of the text pipeline."""


class ChoiceChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one append adds to one choice."""

    i: int = 0
    """Choice index."""
    o: int
    """Absolute offset of the first token of `t` among the choice's generated tokens."""
    t: bytes = b""
    """Packed token ids, end and stop tokens included."""
    ev: tuple[Event, ...] = ()
    state: TextState = TextState()


class PromptUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fixed in the first `tok` record of a request."""

    prompt_tokens: int
    cached_tokens: int = 0


class TokRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`tok`: one append of tokens. One record renders to fixed frames, never merged with another."""

    choices: tuple[ChoiceChunk, ...]
    prompt: PromptUsage | None = None
    prompt_ids: bytes | None = None
    """Packed prompt ids, in the first record of a request that asked for token ids."""
    v: int = 1


class ChoiceEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of one choice in the terminal record."""

    i: int = 0
    n: int
    """Generated tokens in the log."""
    cause: Cause
    match: str | int | None = None


class FinRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`fin`: the one terminal record."""

    choices: tuple[ChoiceEnd, ...] = ()
    prompt: PromptUsage | None = None
    failure: Failure | None = None
    digest: bytes = b""
    """blake2b-16 over the packed ids of all choices in order."""
    attempts: int = 1
    v: int = 1


class CancelRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`cancel`: a tombstone; every stage drops the request when it sees it."""

    reason: Literal["disconnect", "api", "timeout"]
    by: str = ""
    v: int = 1


class OwnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`own`: another ingress has taken the stream over and keeps the run alive."""

    ing: str
    v: int = 1


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`dlq.<stage>.<rid>`: a work item that could not be finished, with the reason."""

    stage: str
    subject: str
    failure: Failure
    payload: bytes
    attempts: int = 0
    wid: str = ""
    v: int = 1
