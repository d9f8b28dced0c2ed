"""The models this server offers, as both official clients list them, and what admission may know of one."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from headrace.ingress.dialect import clip
from headrace.ingress.protocols.fields import as_integer
from headrace.shared.config import Config
from headrace.shared.errors import Code, RequestError
from headrace.shared.registry import Registry
from headrace.shared.reports import ModelReport

_MAX_PAGE = 1000
_DEFAULT_PAGE = 20
_LATEST = 253_402_300_799
"""Last second of the year 9999: a model file with an odd date must not take the list down."""


class ServedModels:
    """Models served now, and those served lately: a worker that restarts must not turn its model into a 404."""

    def __init__(self, registry: Registry, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._configured = set(config.model.names)
        self._grace_s = config.ingress.absence_grace_s
        self._clock = clock
        self._seen: dict[str, tuple[ModelReport, float]] = {}

    def note(self) -> None:
        """Remember what is served now."""
        self.current()

    def current(self) -> list[ModelReport]:
        """Models a request would be served with now, in serving order."""
        models = self._registry.models()
        now = self._clock()
        for model in models:
            self._seen[model.name] = (model, now)
        return models

    def find(self, name: str) -> ModelReport | None:
        """The model as served now or, while nothing else took its place, as it was served last."""
        is_any_served = bool(self.current())
        report, seen_at = self._seen.get(name, (None, 0.0))
        is_fresh = self._clock() - seen_at <= self._grace_s
        return report if is_fresh or not is_any_served else None

    def is_known(self, name: str) -> bool:
        """Whether the model is offered here, even if no worker serves it at the moment."""
        return self.find(name) is not None or name in self._configured


class ModelRoutes:
    """GET /v1/models and /v1/models/{id}."""

    def __init__(self, served: ServedModels) -> None:
        self._served = served

    async def listing(self, request: web.Request) -> web.Response:
        """All models; paged for Anthropic clients, whose SDK asks for pages."""
        items = [_item(model) for model in self._served.current()]
        has_more = False
        if "anthropic-version" in request.headers:
            items, has_more = _page(items, request)
        names = [item["id"] for item in items]
        body = {"object": "list", "data": items, "has_more": has_more}
        body |= {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return _json(body)

    async def one(self, request: web.Request) -> web.Response:
        """One model by name, slashes included."""
        name = request.match_info["id"]
        for model in self._served.current():
            if model.name == name:
                return _json(_item(model))
        message = f"the model {clip(name)!r} is not served here"
        raise RequestError(Code.MODEL_NOT_FOUND, message, param="model")


def _item(model: ModelReport) -> dict[str, object]:
    """One superset object that both SDKs validate."""
    created = min(max(model.created, 0), _LATEST)
    created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "headrace",
        "root": model.name,
        "parent": None,
        "shutdown_date": None,
        "max_model_len": model.max_tokens,
        "type": "model",
        "display_name": model.name,
        "created_at": created_at,
        "lifecycle": "active",
        "max_input_tokens": model.max_tokens,
        "max_tokens": model.max_tokens,
        "capabilities": None,
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
    }


def _page(items: list[dict[str, object]], request: web.Request) -> tuple[list[dict[str, object]], bool]:
    query = request.query
    raw = query.get("limit", str(_DEFAULT_PAGE))
    limit = as_integer(int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 9 else raw, "limit", 1, _MAX_PAGE)
    names = [item["id"] for item in items]
    after, before = query.get("after_id"), query.get("before_id")
    if after in names:
        items = items[names.index(after) + 1 :]
    elif before in names:
        items = items[: names.index(before)]
        return items[-limit:], len(items) > limit
    return items[:limit], len(items) > limit


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
