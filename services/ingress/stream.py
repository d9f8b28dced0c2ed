"""The client's side of a stream: the status line held back for the first output, keep-alives, slow readers."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from headrace.ingress import sse
from headrace.shared.config import Ingress
from headrace.shared.telemetry import metrics

_PROXY_SHARE = 3
"""Keep-alives come this often within the time a client is willing to wait for a byte."""
_SHORTEST_S = 0.2
"""However impatient a client says it is, it cannot make us write without end."""


class SlowClientError(ConnectionError):
    """The client did not read for too long."""


class EventStream:
    """One SSE response. All methods raise ConnectionError when the client is gone."""

    def __init__(self, request: web.Request, settings: Ingress) -> None:
        self._request = request
        self._settings = settings
        self._response = _Response(headers=sse.HEADERS)
        self._loop = asyncio.get_running_loop()
        patience_s = read_timeout(request)
        share_s = max(_SHORTEST_S, patience_s / _PROXY_SHARE) if patience_s else math.inf
        self._keepalive_s = min(settings.keepalive_s, share_s)
        self.wake_at = self._loop.time() + min(settings.commit_after_s, share_s)
        """Loop time at which the client should hear something."""

    @property
    def is_committed(self) -> bool:
        """Whether the status line is out, so that errors can only be frames."""
        return self._response.prepared

    async def send(self, frames: Sequence[bytes]) -> None:
        """Write frames in one go."""
        if frames:
            await self._write(self._response.write, frames)

    async def finish(self, frames: Sequence[bytes]) -> None:
        """Write the last frames, and the end of the response with them."""
        await self._write(self._response.write_eof, frames)

    async def keep_alive(self) -> None:
        """Let the client and every proxy on the way hear that the stream lives."""
        await self.send([sse.KEEPALIVE])

    def close(self) -> web.StreamResponse:
        """The response to return; aiohttp writes its end."""
        return self._response

    async def _write(self, write: Callable[[bytes], Awaitable[None]], frames: Sequence[bytes]) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await write(b"".join(frames))
        except TimeoutError:
            metrics.SSE_WRITE_TIMEOUTS_TOTAL.inc()
            if self._request.transport is not None:
                self._request.transport.abort()
            raise SlowClientError("the client does not read") from None
        self.wake_at = self._loop.time() + self._keepalive_s


class _Response(web.StreamResponse):
    _send_headers_immediately = False
    """The head travels with the first frames."""


def read_timeout(request: web.Request) -> float | None:
    """Seconds the client waits for a byte, as its SDK says; None when it does not or says nonsense."""
    try:
        seconds = float(request.headers.get("x-stainless-read-timeout", ""))
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None
