"""Identifiers: request ids (lowercase ULIDs), worker ids and what may stand in a subject token."""

import re
import secrets
import time

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WID = re.compile(r"[a-z0-9-]+")
_WID_CHARS = 40
_RID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")


def new_rid() -> str:
    """Return a fresh lowercase ULID: 48 bits of milliseconds, 80 random bits, 26 characters."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def new_wid(stage: str) -> str:
    """Return a worker id `<stage>-<random>`, new at every start and never reused, at most 40 characters."""
    return f"{stage}-{secrets.token_hex(5)}"


def is_rid(text: str) -> bool:
    """Whether `text` has the form of a request id."""
    return _RID.fullmatch(text) is not None


def is_subject_token(text: str) -> bool:
    """Whether `text` may be one token of a subject: nothing from outside enters a subject unchecked."""
    return _TOKEN.fullmatch(text) is not None


def is_wid(text: str) -> bool:
    """Whether `text` has the form of a worker id."""
    return len(text) <= _WID_CHARS and _WID.fullmatch(text) is not None


def stage_of(wid: str) -> str:
    """Return the stage a worker id belongs to."""
    return wid.rsplit("-", 1)[0]
