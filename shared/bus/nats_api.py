"""JetStream's management API as raw requests: create, compare, purge, delete, list.

nats-py's own manager is not used: it lacks newer fields and turns a missing stream, a full one and a leaderless one
into the same exception. Knows how JetStream's errors map to ours.
"""

from typing import TypeVar

import msgspec

from headrace.shared.bus import ConsumerSpec, StreamSpec
from headrace.shared.bus.drift import consumer_drift, stream_drift
from headrace.shared.bus.nats_link import Link
from headrace.shared.bus.nats_spec import (
    ConsumerConfig,
    StreamConfig,
    consumer_request,
    consumer_spec,
    stream_config,
    stream_spec,
)
from headrace.shared.errors import BusError, FencedError, MissingError, QueueFullError

CONSUMER_MISSING = 10014
CONSUMER_EXISTS = 10148
MESSAGE_MISSING = frozenset({10043, 10057})
STREAM_EXISTS = 10058
STREAM_MISSING = 10059
FULL = 10077
FENCED = frozenset({10071, 10164})
NO_ROOM = frozenset({10023, 10047})
TOO_FAST = 10167


class ApiError(msgspec.Struct, frozen=True):
    """An error as JetStream reports it."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    error: ApiError | None = None
    purged: int = 0
    total: int = 0
    consumers: list[str] | None = None


class _StreamAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ApiError | None = None
    config: StreamConfig = StreamConfig()


class _ConsumerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ApiError | None = None
    config: ConsumerConfig = ConsumerConfig()


_T = TypeVar("_T", _Answer, _StreamAnswer, _ConsumerAnswer)


class JetStreamApi:
    """Management calls over one connection; all are idempotent and repeated until answered."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def ensure_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.ensure_stream`."""
        found = await self._stream(spec.name)
        if found is None:
            answer = await self._call(f"STREAM.CREATE.{spec.name}", stream_config(spec), _Answer)
            if answer.error is None:
                return []
            if answer.error.err_code != STREAM_EXISTS:
                raise refusal(f"stream {spec.name}", answer.error)
            return await self.check_stream(spec)
        return stream_drift(spec, found)

    async def check_stream(self, spec: StreamSpec) -> list[str]:
        """See `Bus.check_stream`."""
        found = await self._stream(spec.name)
        return [f"stream {spec.name}: missing"] if found is None else stream_drift(spec, found)

    async def ensure_consumer(self, spec: ConsumerSpec) -> list[str]:
        """See `Bus.ensure_consumer`."""
        found = await self._consumer(spec.stream, spec.name)
        if found is None:
            operation = f"CONSUMER.CREATE.{spec.stream}.{spec.name}.{spec.filter}"
            answer = await self._call(operation, consumer_request(spec), _Answer)
            if answer.error is None:
                return []
            if answer.error.err_code != CONSUMER_EXISTS:
                raise refusal(f"consumer {spec.stream}/{spec.name}", answer.error)
            found = await self._consumer(spec.stream, spec.name)
        return [] if found is None else consumer_drift(spec, found)

    async def consumer_exists(self, stream: str, name: str) -> bool:
        """See `Bus.consumer_exists`."""
        return await self._consumer(stream, name) is not None

    async def consumers(self, stream: str) -> list[str]:
        """See `Bus.consumers`."""
        names: list[str] = []
        while True:
            answer = await self._call(f"CONSUMER.NAMES.{stream}", {"offset": len(names)}, _Answer)
            page = _checked(f"stream {stream}", answer).consumers or []
            names += page
            if not page or len(names) >= answer.total:
                return names

    async def delete_consumer(self, stream: str, name: str) -> None:
        """See `Bus.delete_consumer`."""
        answer = await self._call(f"CONSUMER.DELETE.{stream}.{name}", None, _Answer)
        if answer.error is not None and answer.error.err_code != CONSUMER_MISSING:
            raise refusal(f"consumer {stream}/{name}", answer.error)

    async def delete(self, stream: str, seq: int) -> bool:
        """See `Bus.delete`."""
        answer = await self._call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq}, _Answer)
        if answer.error is not None and answer.error.err_code in MESSAGE_MISSING:
            return False
        _checked(f"stream {stream}", answer)
        return True

    async def purge(self, stream: str, subject: str) -> int:
        """See `Bus.purge`."""
        answer = await self._call(f"STREAM.PURGE.{stream}", {"filter": subject}, _Answer)
        return _checked(f"stream {stream}", answer).purged

    async def _stream(self, name: str) -> StreamSpec | None:
        answer = await self._call(f"STREAM.INFO.{name}", None, _StreamAnswer)
        if answer.error is not None:
            if answer.error.err_code == STREAM_MISSING:
                return None
            raise refusal(f"stream {name}", answer.error)
        return stream_spec(name, answer.config)

    async def _consumer(self, stream: str, name: str) -> ConsumerSpec | None:
        answer = await self._call(f"CONSUMER.INFO.{stream}.{name}", None, _ConsumerAnswer)
        if answer.error is not None:
            if answer.error.err_code in {CONSUMER_MISSING, STREAM_MISSING}:
                return None
            raise refusal(f"consumer {stream}/{name}", answer.error)
        return consumer_spec(stream, name, answer.config)

    async def _call(self, operation: str, body: object, kind: type[_T]) -> _T:
        data = b"" if body is None else msgspec.json.encode(body)
        frame = await self._link.ask(f"$JS.API.{operation}", data)
        return msgspec.json.decode(frame.data, type=kind)


def refusal(what: str, error: ApiError) -> BusError:
    """The exception that tells callers what a JetStream error means for them."""
    text = f"{what}: {error.description} ({error.err_code})"
    if error.err_code in FENCED:
        return FencedError(text)
    if error.err_code == FULL:
        return QueueFullError(text, duplicate="per subject" in error.description)
    if error.err_code in NO_ROOM or error.err_code == TOO_FAST:
        return QueueFullError(text)
    if error.err_code in {STREAM_MISSING, CONSUMER_MISSING}:
        return MissingError(text)
    return BusError(text)


def _checked(what: str, answer: _Answer) -> _Answer:
    if answer.error is not None:
        raise refusal(what, answer.error)
    return answer
