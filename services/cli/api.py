"""Talking to a running instance over HTTP with the standard library alone: client verbs must start at once."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from headrace.shared.errors import HeadraceError

_TIMEOUT_S = 10.0


class ApiError(HeadraceError):
    """The instance cannot be reached, or it answered with an error."""


class Api:
    """One instance behind its base URL."""

    def __init__(self, url: str) -> None:
        """Raises ApiError when `url` is not an HTTP URL."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ApiError(f"{url} is not an http:// or https:// URL")
        self._url = url
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def get(self, path: str) -> Any:
        """The JSON answer to a GET; raises ApiError."""
        with self.exchange("GET", path) as answer:
            return _decoded(answer.read())

    def post(self, path: str, body: object) -> Any:
        """The JSON answer to a POST; raises ApiError."""
        with self.exchange("POST", path, body) as answer:
            return _decoded(answer.read())

    @contextmanager
    def exchange(
        self, method: str, path: str, body: object = None, *, timeout_s: float = _TIMEOUT_S
    ) -> Iterator[http.client.HTTPResponse]:
        """One request and its answer, ready to be read; `timeout_s` bounds each wait. Raises ApiError."""
        connection = self._kind(self._host, self._port, timeout=timeout_s)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        payload = json.dumps(body).encode("utf-8") if body is not None else None
        answer = None
        try:
            connection.request(method, self._path + path, payload, headers)
            answer = connection.getresponse()
            if answer.status >= http.client.BAD_REQUEST:
                raise ApiError(error_message(answer.read(), f"{answer.status} {answer.reason}"))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            if answer is not None and isinstance(error, BrokenPipeError):
                raise  # reading does not break pipes: it is our caller's own output that nobody takes
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ApiError(f"no answer from {self._url}: {reason}") from error
        finally:
            connection.close()


def error_message(body: bytes, status: str) -> str:
    """The message inside an error answer, or its status line when there is none."""
    try:
        content = json.loads(body)
    except ValueError:
        return status
    error = content.get("error", content) if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else status


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError("the answer is not JSON: is this a headrace instance?") from error
