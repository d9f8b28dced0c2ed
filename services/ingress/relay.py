"""From records to the client: as frames while they come, or as one reply at the end.

Serves a fresh request and a resumed one alike: it knows a source of records and an encoder, nothing of queues.
"""

import math
from typing import Protocol

import structlog
from aiohttp import web

from headrace.ingress.account import Account
from headrace.ingress.dialect import describe
from headrace.ingress.feed import Item
from headrace.ingress.protocols import Encoder
from headrace.ingress.stream import EventStream
from headrace.shared.errors import Code, Failure, RequestError
from headrace.shared.records import FinRecord, TokRecord

_PROMPT_CODES = {Code.INVALID_PROMPT, Code.CONTEXT_LENGTH}

_WRITE_BYTES = 64 << 10
"""Enough for one write: a client that falls behind should be noticed."""
_NOW = -math.inf
"""As the time to wake at: whatever is here, without waiting."""

log = structlog.get_logger()


class Source(Protocol):
    """Where records come from."""

    async def next(self, wake_at: float) -> Item | None:
        """The next record, or None at the loop time `wake_at`. Raises RequestError when a deadline passed."""


class Relay:
    """One answer on its way to one client."""

    def __init__(self, source: Source, encoder: Encoder, account: Account, prompt_param: str) -> None:
        """`prompt_param`: what the dialect calls the prompt, for errors that concern it."""
        self._source = source
        self._encoder = encoder
        self._account = account
        self._prompt_param = prompt_param

    async def plain(self) -> web.Response:
        """The whole answer. Raises RequestError when the request failed."""
        toks: list[TokRecord] = []
        while True:
            item = await self._source.next(math.inf)
            if isinstance(item, TokRecord):
                self._account.add(item)
                toks.append(item)
            elif item is not None:
                self._raise_failure(item)
                body = self._encoder.reply(toks, item)
                self._account.succeed()
                return web.Response(body=body, content_type="application/json")

    async def stream(self, stream: EventStream) -> web.StreamResponse:
        """Relay to the end. Once the status line is out, every failure becomes a frame: never a silent end."""
        try:
            failure = await self._relay_or_fail(stream)
            if failure is None:
                self._account.succeed()
            else:
                await stream.finish(self._encoder.failure(describe(failure)))
        except ConnectionError:
            self._account.lose()
        return stream.close()

    async def _relay_or_fail(self, stream: EventStream) -> Failure | None:
        """The failure to be told inside the stream; failures before its first byte are raised."""
        try:
            await self._relay(stream)
        except RequestError as error:
            if not stream.is_committed:
                raise
            self._account.fail(error)
            return error.failure
        except ConnectionError:
            raise
        except Exception:
            log.exception("stream_failed", request=self._account.rid)
            if not stream.is_committed:
                raise
            return Failure(code=Code.INTERNAL, message="")
        return None

    async def _relay(self, stream: EventStream) -> None:
        while True:
            item = await self._source.next(stream.wake_at)
            if item is None:
                await stream.keep_alive()
                continue
            frames, fin = await self._take(item)
            if fin is None:
                await stream.send(frames)
                continue
            if failure_of(fin) is not None:
                await stream.send(frames)
                self._raise_failure(fin)
            await stream.finish([*frames, *self._encoder.fin(fin)])
            return

    async def _take(self, item: Item) -> tuple[list[bytes], FinRecord | None]:
        """The frames of all records that are here already, up to a limit, and the terminal one if it is among them."""
        frames: list[bytes] = []
        following: Item | None = item
        num_bytes = 0
        while isinstance(following, TokRecord):
            self._account.add(following)
            new = self._encoder.tok(following)
            frames += new
            num_bytes += sum(map(len, new))
            following = await self._source.next(_NOW) if num_bytes < _WRITE_BYTES else None
        return frames, following

    def _raise_failure(self, fin: FinRecord) -> None:
        failure = failure_of(fin)
        if failure is not None:
            param = failure.param or (self._prompt_param if failure.code in _PROMPT_CODES else None)
            raise RequestError(failure.code, failure.message, param=param, detail=failure.detail)


def failure_of(fin: FinRecord) -> Failure | None:
    """Why a request failed, or None when every choice ended well."""
    if fin.failure is not None:
        return fin.failure
    causes = {end.cause for end in fin.choices}
    if "cancelled" in causes:
        return Failure(code=Code.CANCELLED, message="the request was cancelled")
    if "error" in causes or not causes:
        return Failure(code=Code.INTERNAL, message="the request ended without a reason")
    return None
