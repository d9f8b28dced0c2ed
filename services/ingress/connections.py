"""HTTP connections whose every answer is ours: also to bytes that are no HTTP, which no route ever sees.

aiohttp by itself answers those as plain text without ids, quotes what was sent, and logs each as an error. Nor does it
ever give up on a client that connects and says nothing, or says it one byte at a time.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web

from headrace.ingress.answers import answer
from headrace.ingress.dialect import HttpError, describe
from headrace.ingress.identity import identity_of, stamp
from headrace.shared.errors import Code, Failure
from headrace.shared.telemetry import metrics

_MALFORMED = "the bytes received are no valid HTTP request, or its URL or headers are too large"

log = structlog.get_logger()


class Runner(web.AppRunner):
    """Runs an application on such connections."""

    def __init__(self, app: web.Application, *, connect_s: float, **kwargs: Any) -> None:
        """`connect_s`: longest time from a connection to the end of its first request's head."""
        super().__init__(app, **kwargs)
        self._connect_s = connect_s

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()

        def on_head(message: Any, payload: Any, connection: Any, *rest: Any) -> web.BaseRequest:
            connection.has_head()
            request: web.BaseRequest = made.request_factory(message, payload, connection, *rest)
            return request

        return _Server(made.request_handler, request_factory=on_head, connect_s=self._connect_s, **self._kwargs)


class _Server(web.Server):
    def __init__(self, handler: Any, *, connect_s: float, **kwargs: Any) -> None:
        super().__init__(handler, **kwargs)
        self._connect_s = connect_s

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._connect_s, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ("_connect_s", "_patience")

    def __init__(
        self, manager: web.Server, connect_s: float, *, loop: asyncio.AbstractEventLoop, **kwargs: Any
    ) -> None:
        super().__init__(manager, loop=loop, **kwargs)
        self._connect_s = connect_s
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client its time to say what it wants."""
        super().connection_made(transport)
        self._patience = asyncio.get_running_loop().call_later(self._connect_s, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over."""
        self.has_head()
        super().connection_lost(exc)

    def has_head(self) -> None:
        """A request begins; what comes after it has bounds of its own."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what went wrong outside all routes. `message` quotes the client, so it goes nowhere."""
        del message
        rid = identity_of(request).rid
        if status < 500:
            log.info("request_malformed", request=rid, reason=type(exc).__name__)
            problem = HttpError(status, _MALFORMED).problem
        else:
            log.error("request_failed", request=rid, exc_info=exc)
            problem = describe(Failure(code=Code.INTERNAL, message=""))
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer is out already")
        metrics.HTTP_REQUESTS_TOTAL.labels(route=metrics.OTHER, status=str(problem.status)).inc()
        response = answer(request, problem)
        stamp(request, response)
        response.force_close()
        return response
