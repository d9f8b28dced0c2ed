"""Chat templates: the sandboxed Jinja environment models are written for, and rendering with it.

A template is code of the model's author: it is compiled and run in a process of its own only (see `renderer`).
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate(msgspec.Struct, frozen=True):
    """A chat template as data; nothing of it has run yet."""

    source: str
    variables: dict[str, str] = {}
    """Special tokens by the names templates use: `bos_token`, `eos_token`, …"""


class RefusedError(Exception):
    """The template itself refused the conversation through `raise_exception`."""


class Renderable:
    """A compiled template."""

    def __init__(self, template: ChatTemplate, max_chars: int) -> None:
        """Compile; raises jinja2.TemplateError when the source is no template."""
        self._variables = template.variables
        self._max_chars = max_chars
        self._compiled = _environment().from_string(template.source)

    def render(self, variables: Mapping[str, object]) -> str:
        """Render with plain JSON values; raises RefusedError, ValueError for too much text, or whatever the template
        provokes.
        """
        pieces: list[str] = []
        room = self._max_chars
        for piece in self._compiled.generate({**self._variables, **variables}):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise ValueError(f"the prompt is longer than {self._max_chars} characters")
        return "".join(pieces)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_today
    for name in ("lipsum", "cycler", "joiner"):
        del environment.globals[name]
    return environment


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own words for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  # declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, **options: Any) -> str:
    """Plain JSON: the built-in filter escapes `<>&` for HTML, which models have never seen."""
    allowed = {name: options[name] for name in ("indent", "separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=bool(options.get("ensure_ascii", False)), **allowed)


def _refuse(message: str) -> NoReturn:
    raise RefusedError(str(message))


def _strftime_today(layout: str) -> str:
    """The UTC date at midnight: a clock that moved would spoil prefix caching with every request."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).strftime(layout)
