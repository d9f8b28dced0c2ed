"""Who a call is: its request id, and the headers that every answer carries."""

import re
import time
from dataclasses import dataclass, field

from aiohttp import web

from headrace.shared.ids import new_rid

_HEADER_SAFE = re.compile(r"[A-Za-z0-9._:\-\[\]]{1,128}")
_MAX_IGNORED = 32


@dataclass(slots=True)
class Identity:
    """One HTTP call."""

    rid: str = field(default_factory=new_rid)
    started_at: float = field(default_factory=time.monotonic)
    is_generation: bool = False
    """Whether the rid names a request that can be asked about."""
    ignored: tuple[str, ...] = ()
    """Body fields that had no effect."""

    @property
    def request_id(self) -> str:
        """The id clients see and log."""
        return f"req_{self.rid}"


_KEY = web.RequestKey("identity", Identity)


def identity_of(request: web.BaseRequest) -> Identity:
    """The call's identity, made at first sight."""
    identity = request.get(_KEY)
    if identity is None:
        identity = request[_KEY] = Identity()
    return identity


def caller_of(request: web.BaseRequest) -> dict[str, str]:
    """What the client says of itself that belongs in the log: its own id of the call, and which try this is."""
    named = {"client_request": "x-client-request-id", "retry": "x-stainless-retry-count"}
    values = {key: request.headers.get(header, "") for key, header in named.items()}
    return {key: value for key, value in values.items() if _HEADER_SAFE.fullmatch(value)}


def stamp(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Put the common headers on a response that is about to start."""
    identity = identity_of(request)
    headers = response.headers
    headers["Server"] = "headrace"
    headers["x-request-id"] = headers["request-id"] = identity.request_id
    headers["openai-version"] = "2020-10-01"
    headers["openai-processing-ms"] = str(int((time.monotonic() - identity.started_at) * 1000))
    if identity.is_generation:
        headers["x-headrace-request"] = identity.rid
    names = [name for name in identity.ignored if _HEADER_SAFE.fullmatch(name)]
    if names:
        headers["x-ignored-params"] = ",".join(names[:_MAX_IGNORED])
