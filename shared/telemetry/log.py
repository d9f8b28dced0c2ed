"""Logs: one JSON object a line, to stderr and to a file, and nothing of what users write.

Ours and the libraries' records take one path, and so do uncaught exceptions. What might hold a prompt, an answer or a
key is dropped by the name of its field; objects are shown by their type; exceptions by type and place, with their
message only where we or a server wrote it.
"""

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.shared.config import Log
from headrace.shared.errors import BusError, CacheError, ConfigError, ModelError

PRIVATE = frozenset({
    "api_key", "arguments", "authorization", "body", "content", "cookie", "ids", "input", "messages", "password",
    "prompt", "prompt_ids", "proxy_authorization", "set_cookie", "text", "token_ids", "tokens", "x_api_key",
})  # fmt: skip
"""Field names that are dropped at every depth, whatever they hold; case and `-` do not matter."""

_MAX_TEXT = 1000
_MAX_DEPTH = 6
_MAX_FRAMES = 24
_OPEN_MESSAGES = (BusError, CacheError, ConfigError, ModelError, OSError)
_OPEN_PACKAGES = frozenset({"nats", "redis"})


def setup(log: Log, stage: str, wid: str) -> None:
    """Route all logging of this process; call once, early. Raises ConfigError when the log file cannot be opened."""
    streams: list[TextIO] = [sys.stderr]
    if log.dir:
        streams.append(_open_file(Path(log.dir), wid))
    structlog.configure(
        processors=_processors(stage, wid),
        wrapper_class=structlog.make_filtering_bound_logger(log.level),
        logger_factory=lambda *_: _Lines(streams),
        cache_logger_on_first_use=False,
    )
    logging.root.handlers = [_Forward(logging.WARNING)]
    logging.root.setLevel(logging.WARNING)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_thread_uncaught
    sys.unraisablehook = _on_unraisable


def _open_file(folder: Path, wid: str) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{wid}.log").open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise ConfigError(f"log.dir {folder}: {error.strerror}") from error


def _processors(stage: str, wid: str) -> list[Processor]:
    def add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.update(stage=stage, wid=wid)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        drop_private,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_origin,
        structlog.processors.JSONRenderer(serializer=json.dumps, sort_keys=False),
    ]


class _Lines:
    """The end of the chain: whole lines to every stream. Logging never fails the caller."""

    def __init__(self, streams: Iterable[TextIO]) -> None:
        self._streams = tuple(streams)

    def _write(self, line: str) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError, ValueError):  # pipe or disk gone, or closed at exit
                stream.write(f"{line}\n")
                stream.flush()

    debug = info = warning = error = critical = _write


class _Forward(logging.Handler):
    """Brings records of libraries onto our path: first line of the unformatted message, level, logger, exception."""

    def emit(self, record: logging.LogRecord) -> None:
        """The arguments stay out: they are the library's idea of what to tell, and may quote a request."""
        event = str(record.msg).partition("\n")[0]
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        structlog.get_logger().log(level, event, logger=record.name, exc_info=record.exc_info)


def drop_private(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The processor that makes a record safe: private fields gone, values reduced to plain ones."""
    failure = _exception_of(event.pop("exc_info", None))
    safe = _plain_mapping(event, 0)
    if failure is not None:
        safe.update(_describe(failure))
    return safe


def _plain_mapping(fields: Mapping[Any, object], depth: int) -> dict[str, object]:
    named = {str(key): value for key, value in fields.items()}
    return {
        key[:_MAX_TEXT]: _plain(value, depth)
        for key, value in named.items()
        if key.lower().replace("-", "_") not in PRIVATE
    }


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)[:_MAX_TEXT]
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return _plain_mapping(value, depth + 1)
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return f"<{type(value).__name__}>"


def _exception_of(exc_info: object) -> BaseException | None:
    """The exception behind any form of `exc_info`."""
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    elif exc_info and not isinstance(exc_info, BaseException):
        exc_info = sys.exc_info()[1]
    return exc_info if isinstance(exc_info, BaseException) else None


def _describe(failure: BaseException) -> dict[str, object]:
    """One exception as flat fields, without locals, source lines or text that a user may have written."""
    described: dict[str, object] = {"exc_type": type(failure).__qualname__, "exc_trace": _trace(failure.__traceback__)}
    package = type(failure).__module__.partition(".")[0]
    if isinstance(failure, _OPEN_MESSAGES) or package in _OPEN_PACKAGES:
        described["exc_message"] = str(failure)[:_MAX_TEXT]
    cause = failure.__cause__ or failure.__context__
    if cause is not None:
        described["exc_cause"] = f"{type(cause).__qualname__} at {_trace(cause.__traceback__)}"
    if isinstance(failure, BaseExceptionGroup):
        described["exc_group"] = [_describe(inner) for inner in failure.exceptions]
    return described


def _trace(traceback: TracebackType | None) -> str:
    """`file:line function` of each frame, outermost first."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{'/'.join(Path(code.co_filename).parts[-3:])}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " > ".join(frames[-_MAX_FRAMES:])


def _on_uncaught(kind: type[BaseException], failure: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    structlog.get_logger().critical("uncaught_exception", exc_info=(kind, failure, traceback))


def _on_thread_uncaught(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else ""
    structlog.get_logger().critical("uncaught_exception", thread=name, exc_info=args.exc_value)


def _on_unraisable(args: "sys.UnraisableHookArgs") -> None:
    structlog.get_logger().error("unraisable_exception", exc_info=args.exc_value)
