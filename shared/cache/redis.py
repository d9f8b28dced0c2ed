"""The shared block store on a Valkey or Redis server.

The server is a cache and nothing else: it may be slow, frozen, full, restarted or gone, and no caller notices more than
a miss. Every round trip has a hard budget and no retries; a connection that failed is never used again; after a failure
the breaker answers at once until a probe succeeds.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from redis.connection import parse_url
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.shared.cache import BlockStore, Buffer, Value
from headrace.shared.cache.breaker import Breaker
from headrace.shared.cache.connection import S_PER_BYTE, Connection
from headrace.shared.cache.resp import Command
from headrace.shared.config import Cache
from headrace.shared.errors import CacheError, ConfigError

_KEYS_PER_GET = 8
_KEYS_PER_COUNT = 128
_BYTES_PER_PUT = 8 << 20
_MAX_IDLE = 8
_FAILURES = (RedisError, OSError, ValueError)
"""What a round trip can end in; ValueError is a server that speaks another protocol."""

Item = tuple[str, tuple[Buffer, ...]]


class Meter(Protocol):
    """Where the store tells what it sees."""

    def looked_up(self, seconds: float, cut: str | None) -> None:
        """One `get`: its time, and why it ended early: absent, timeout, error, refused, breaker; None if it did not."""

    def breaker_changed(self, is_open: bool) -> None:
        """The breaker opened or closed."""


class _NoMeter:
    def looked_up(self, seconds: float, cut: str | None) -> None:
        pass

    def breaker_changed(self, is_open: bool) -> None:
        pass


def open_store(cache: Cache, meter: Meter | None = None) -> BlockStore | None:
    """The store the configuration names; None for `off` or no URL. Does not connect. Raises ConfigError."""
    if cache.url in {"", "off"}:
        return None
    return RedisStore(cache, meter)


class RedisStore:
    """See `BlockStore`. Thread-safe; each thread in a call uses a connection of its own."""

    def __init__(self, cache: Cache, meter: Meter | None = None) -> None:
        """Raises ConfigError when the URL cannot be used."""
        self._target = _target(cache.url)
        self._ttl_s = cache.ttl_s
        self._budget_s = cache.budget_s
        self._meter = meter or _NoMeter()
        self._breaker = Breaker(cache.breaker_s, on_change=self._meter.breaker_changed)
        self._idle: deque[Connection] = deque()
        self._closed = False

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        """The longest leading run that is there; None from the first missing key on, as blocks behind are useless.

        At most 8 keys a round trip, and none after the first miss. What is read lives on for another `ttl_s`.
        """
        found: list[Buffer | None] = [None] * len(keys)
        cut, began = None, time.monotonic()
        try:
            for first in range(0, len(keys), _KEYS_PER_GET):
                run = self._get_run(keys[first : first + _KEYS_PER_GET])
                found[first : first + len(run)] = run
                if len(run) < min(_KEYS_PER_GET, len(keys) - first):
                    cut = "absent"
                    break
        except CacheError as error:
            cut = str(error)
        self._meter.looked_up(time.monotonic() - began, cut)
        return found

    def put(self, items: Sequence[tuple[str, Value]]) -> int:
        """Store values in order, at most 8 MiB a round trip, until the first that is refused; returns how many were."""
        num_stored = 0
        try:
            for group in _groups([(key, _parts(value)) for key, value in items]):
                sets = [("SET", key, value, "EX", self._ttl_s) for key, value in group]
                replies = self._exchange(sets, sum(_size(value) for _, value in group))
                stored = _leading(reply == b"OK" for reply in replies)
                num_stored += stored
                if stored < len(group):
                    break
        except CacheError:
            return num_stored
        return num_stored

    def count_prefix(self, keys: Sequence[str]) -> int:
        """Length of the leading run that is there; looking does not keep a value alive."""
        num_found = 0
        try:
            for first in range(0, len(keys), _KEYS_PER_COUNT):
                asked = keys[first : first + _KEYS_PER_COUNT]
                there = _leading(reply == 1 for reply in self._exchange([("EXISTS", key) for key in asked]))
                num_found += there
                if there < len(asked):
                    break
        except CacheError:
            return num_found
        return num_found

    def discard(self, key: str) -> None:
        """Remove a value, if it is there and the store answers."""
        with suppress(CacheError):
            self._exchange([("UNLINK", key)])

    def is_healthy(self) -> bool:
        """Whether the store may be asked now: the breaker is closed, or a probe is due."""
        return not self._closed and self._breaker.is_willing()

    def ping(self) -> bool:
        """One round trip, whatever the breaker says; its outcome closes or opens the breaker."""
        try:
            return self._exchange([("PING",)], forced=True) == [b"PONG"]
        except CacheError:
            return False

    def close(self) -> None:
        """Release connections; every later call is a miss."""
        self._closed = True
        while connection := self._pop_idle():
            connection.drop()

    def _get_run(self, keys: Sequence[str]) -> list[Buffer]:
        """Values before the first missing one. The time to live is renewed in the same round trip."""
        renewals = [("EXPIRE", key, self._ttl_s) for key in keys]
        values = self._exchange([("MGET", *keys), *renewals])[0]
        if not isinstance(values, list):
            raise CacheError("refused")
        return values[: _leading(value is not None for value in values)]

    def _exchange(self, commands: Sequence[Command], num_bytes: int = 0, *, forced: bool = False) -> list[Any]:
        """Send all commands, read all replies (refusals among them as ResponseError objects).

        Raises CacheError with the reason: breaker, timeout or error.
        """
        if self._closed or not (forced or self._breaker.admit()):
            raise CacheError("breaker")
        connection = self._pop_idle() or Connection(**self._target)
        is_whole = False
        try:
            replies = connection.exchange(commands, self._budget_s + num_bytes * S_PER_BYTE)
            is_whole = True
        except _FAILURES as error:
            self._breaker.fail()
            raise CacheError("timeout" if isinstance(error, TimeoutError | RedisTimeoutError) else "error") from error
        finally:
            self._release(connection, is_whole=is_whole)
        self._breaker.succeed()
        return replies

    def _pop_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _release(self, connection: Connection, *, is_whole: bool) -> None:
        """Keep a connection only if every reply was read: a late reply must never answer another question."""
        if is_whole and not self._closed and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.drop()


def _leading(there: Iterator[bool]) -> int:
    """How many are true before the first that is not."""
    num = 0
    for is_there in there:
        if not is_there:
            break
        num += 1
    return num


def _parts(value: Value) -> tuple[Buffer, ...]:
    return value if isinstance(value, tuple) else (value,)


def _size(parts: tuple[Buffer, ...]) -> int:
    return sum(len(part) for part in parts)


def _groups(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Runs of items of at most 8 MiB together; a larger item goes alone."""
    group: list[Item] = []
    size = 0
    for item in items:
        if group and size + _size(item[1]) > _BYTES_PER_PUT:
            yield group
            group, size = [], 0
        group.append(item)
        size += _size(item[1])
    if group:
        yield group


def _target(url: str) -> dict[str, Any]:
    """Keyword arguments of `Connection` for a URL; raises ConfigError for what cannot be honoured."""
    try:
        parts: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py left it unannotated
    except ValueError as error:
        raise ConfigError(f"cache.url: expected redis://host:port or unix:///path ({error})") from error
    parts.pop("connection_class", None)
    path, host, port = parts.pop("path", ""), parts.pop("host", "localhost"), parts.pop("port", 6379)
    unknown = sorted(set(parts) - {"db", "username", "password"})
    if unknown:
        raise ConfigError(f"cache.url: option {unknown[0]!r} is not supported")
    if url.startswith("rediss:"):
        raise ConfigError("cache.url: TLS (rediss://) is not supported")
    return {"address": path or (host, port), **parts}
