"""Configuration from outside: defaults < YAML file < environment < `--set`; unknown keys are refused by name.

Everything that shapes a process comes through here; `config` says what there is.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from headrace.shared.config import ROOMS, Config, room_type
from headrace.shared.errors import ConfigError


def load(file: str | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Merge defaults, YAML `file`, environment `HEADRACE_<ROOM>__<KEY>` and `key=value` settings.

    Raises ConfigError naming the source and the key of the first thing that is wrong.
    """
    tree: dict[str, dict[str, Any]] = {room: {} for room in ROOMS}
    if file:
        _merge_file(tree, file)
    for name, value in sorted((environ if environ is not None else os.environ).items()):
        if name.startswith("HEADRACE_") and "__" in name:
            room, _, key = name.removeprefix("HEADRACE_").lower().partition("__")
            _assign(tree, f"{room}.{key}", value, f"environment {name}")
    for setting in sets:
        dotted, sep, value = setting.partition("=")
        if not sep:
            raise ConfigError(f"--set {setting}: expected key=value")
        _assign(tree, dotted.strip(), value, f"--set {setting}")
    return _build(tree)


def dump(config: Config) -> str:
    """YAML that `load` reads back as the same configuration."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)


class _Loader(yaml.SafeLoader):
    """YAML in which `off`, `on`, `yes` and `no` are words (`cache.url: off`), as in YAML 1.2."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506  # a safe loader with fewer booleans


def _merge_file(tree: dict[str, dict[str, Any]], file: str) -> None:
    try:
        content = _parse(Path(file).read_text("utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file}: {error}") from error
    if content is None:
        return
    if not isinstance(content, dict):
        raise ConfigError(f"configuration file {file}: expected rooms at the top level")
    for room, values in content.items():
        if room not in tree:
            raise ConfigError(f"configuration file {file}: unknown key {room!r} (rooms: {', '.join(ROOMS)})")
        if values is None:
            continue
        if not isinstance(values, dict):
            raise ConfigError(f"configuration file {file}: room {room!r} must hold keys")
        for key, value in values.items():
            _check_key(f"{room}.{key}", f"configuration file {file}")
            tree[room][key] = value


def _check_key(dotted: str, source: str) -> tuple[str, str]:
    room, _, key = dotted.partition(".")
    if room not in ROOMS:
        raise ConfigError(f"{source}: unknown key {dotted!r} (rooms: {', '.join(ROOMS)})")
    fields = room_type(room).__struct_fields__
    if key not in fields:
        raise ConfigError(f"{source}: unknown key {dotted!r} (keys of {room}: {', '.join(fields)})")
    return room, key


def _assign(tree: dict[str, dict[str, Any]], dotted: str, text: str, source: str) -> None:
    room, key = _check_key(dotted, source)
    annotation = room_type(room).__annotations__[key]
    try:
        value = text if annotation is str else _parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {error}") from error
    if value is None and annotation is not str:
        value = ""
    if key == "names" and isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    tree[room][key] = value


def _build(tree: dict[str, dict[str, Any]]) -> Config:
    try:
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise ConfigError(f"{place.rstrip('`')}: {reason}") from error
