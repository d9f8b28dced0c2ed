"""Wires the HTTP application: routes, ids and common headers on every answer, every error as JSON."""

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from headrace.ingress import dialect
from headrace.ingress.account import CLIENT_GONE
from headrace.ingress.admin import AdminRoutes
from headrace.ingress.answers import answer
from headrace.ingress.body import check_length
from headrace.ingress.connections import Runner
from headrace.ingress.dialect import HttpError, Problem
from headrace.ingress.front import Front
from headrace.ingress.generation import Generation
from headrace.ingress.identity import identity_of, stamp
from headrace.ingress.models import ModelRoutes
from headrace.ingress.protocols import PROTOCOLS
from headrace.ingress.requests import RequestRoutes
from headrace.ingress.resume import ResumeRoute
from headrace.shared.errors import Code, Failure, RequestError
from headrace.shared.telemetry import metrics

_KEEPALIVE_S = 75.0
"""Longer than the idle limits of common proxies, so that they close first."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger()


def build_runner(front: Front, *, shutdown_s: float = 2.0) -> web.AppRunner:
    """The HTTP server over a started front door; at its end open answers get `shutdown_s` before they are cut."""
    return Runner(
        _build_app(front),
        connect_s=front.config.timeouts.connect_s,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=_KEEPALIVE_S,
        shutdown_timeout=shutdown_s,
    )


def _build_app(front: Front) -> web.Application:
    app = web.Application(middlewares=[_count, _errors_as_json], client_max_size=front.config.limits.max_body_bytes)
    app.on_response_prepare.append(_stamper(front))
    expect = _expect_handler(front)
    for adapter in PROTOCOLS:
        generation = Generation(front, adapter).post
        for prefix in ("/v1", ""):
            app.router.add_post(prefix + adapter.path, generation, expect_handler=expect)
            app.router.add_get(prefix + adapter.path, _nothing_stored)
    models = ModelRoutes(front.models)
    for prefix in ("/v1", ""):
        app.router.add_get(f"{prefix}/models", models.listing)
        app.router.add_get(prefix + "/models/{id:.+}", models.one)
    _add_operator_routes(app, front)
    return app


def _add_operator_routes(app: web.Application, front: Front) -> None:
    admin, requests = AdminRoutes(front), RequestRoutes(front)
    app.router.add_get("/health", admin.ready)
    app.router.add_get("/health/ready", admin.ready)
    app.router.add_get("/health/live", admin.live)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/headrace/workers", admin.workers)
    app.router.add_post("/headrace/scale", admin.scale)
    app.router.add_post("/headrace/drain", admin.drain)
    app.router.add_get("/headrace/requests/{rid}", requests.status)
    app.router.add_get("/headrace/requests/{rid}/stream", ResumeRoute(front).get)
    app.router.add_post("/headrace/requests/{rid}/cancel", requests.cancel)


async def _nothing_stored(request: web.Request) -> web.StreamResponse:
    """Replies are not kept under these paths: there is nothing to list."""
    raise HttpError(404, _invalid_url(request), headers={"Allow": "POST"})


def _stamper(front: Front) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
        stamp(request, response)
        if front.draining.is_set():
            response.headers["Connection"] = "close"
            response.force_close()
            if "retry-after" in response.headers:
                # Another process, or the next one, takes the connection that this advice leads to.
                response.headers.update({"retry-after": "1", "retry-after-ms": "1000"})

    return on_prepare


def _expect_handler(front: Front) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """`Expect: 100-continue`: refuse a body that is too large before the client sends it."""

    async def expect(request: web.Request) -> web.StreamResponse | None:
        identity_of(request).is_generation = True
        try:
            check_length(request, front.config.limits.max_body_bytes)
        except RequestError as error:
            return answer(request, dialect.describe(error.failure))
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    return expect


@web.middleware
async def _count(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count every answer by route and status."""
    status = CLIENT_GONE
    try:
        response = await handler(request)
        status = response.status
    finally:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else metrics.OTHER
        metrics.HTTP_REQUESTS_TOTAL.labels(route=route, status=str(status)).inc()
    return response


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The HTTP edge: whatever a handler raises becomes an error body in the caller's dialect."""
    try:
        return await handler(request)
    except (RequestError, HttpError) as error:
        problem = dialect.describe_error(error)
    except web.HTTPException as error:
        problem = _problem_of(request, error)
    except ConnectionError:
        problem = HttpError(CLIENT_GONE, "the client closed the connection").problem
    except Exception:
        log.exception("request_failed", request=identity_of(request).rid)
        problem = dialect.describe(Failure(code=Code.INTERNAL, message=""))
    return answer(request, problem)


def _problem_of(request: web.Request, error: web.HTTPException) -> Problem:
    if isinstance(error, web.HTTPNotFound):
        return HttpError(404, _invalid_url(request)).problem
    if isinstance(error, web.HTTPMethodNotAllowed):
        allow = {"Allow": ",".join(sorted(error.allowed_methods))}
        return HttpError(405, _invalid_url(request), headers=allow).problem
    return HttpError(error.status, error.reason).problem


def _invalid_url(request: web.Request) -> str:
    return f"Invalid URL ({request.method} {dialect.clip(request.rel_url.raw_path)})"
