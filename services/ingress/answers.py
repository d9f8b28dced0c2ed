"""The answer to a call that failed: status, JSON body and headers as the caller's dialect wants them."""

from aiohttp import web

from headrace.ingress import dialect
from headrace.ingress.dialect import Problem
from headrace.ingress.identity import identity_of


def answer(request: web.BaseRequest, problem: Problem) -> web.Response:
    """One problem as a response."""
    speech = dialect.dialect_of(request.path, request.headers)
    return web.Response(
        status=dialect.status_in(problem, speech),
        body=dialect.body_in(problem, speech, identity_of(request).request_id),
        content_type="application/json",
        headers=problem.headers,
    )
