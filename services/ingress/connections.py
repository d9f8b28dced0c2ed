"""HTTP connections whose every answer is ours: also to bytes that are no HTTP, which no route ever sees.

aiohttp by itself answers those as plain text without ids, quotes what was sent, and logs each as an error.
"""

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

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ()

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
