"""Reading a JSON body: limits first, then bytes, then one object. Every refusal is a readable error."""

import asyncio

import msgspec
from aiohttp import web

from headrace.ingress.dialect import HttpError
from headrace.ingress.protocols.fields import Fields
from headrace.shared.errors import Code, RequestError

_decode = msgspec.json.Decoder().decode


async def read_body(request: web.Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body's bytes; refuses other content types, bodies that are too large and clients that are too slow."""
    if request.content_type != "application/json":
        raise HttpError(415, "the body must be sent as content type application/json")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise HttpError(415, "the body must be sent without content encoding")
    check_length(request, max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        headers = {"Connection": "close"}
        raise HttpError(408, f"the body did not arrive within {timeout_s:g} seconds", headers=headers) from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large(max_bytes) from None
    except web.RequestPayloadError:
        raise HttpError(400, "the body is not framed as its headers say") from None


def check_length(request: web.Request, max_bytes: int) -> None:
    """Refuse by the announced length, before a byte is read."""
    if request.content_length is not None and request.content_length > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> RequestError:
    """The refusal of a body above the limit."""
    return RequestError(Code.BODY_TOO_LARGE, f"the body is larger than {max_bytes} bytes (limits.max_body_bytes)")


def parse_object(body: bytes) -> Fields:
    """The JSON object in a body. The error names no part of the body: it may not even be text."""
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise HttpError(400, "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_type")
    return Fields(value)
