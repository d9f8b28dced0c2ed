"""The text side of a model directory in Hugging Face form: tokenizer, special tokens, template, limits, end tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from headrace.shared.errors import ModelError
from headrace.shared.text.tokenizer import HfTokenizer

Settings = Mapping[str, Any]


def read_settings(directory: Path) -> dict[str, Any]:
    """`config.json`, `generation_config.json`, `tokenizer_config.json` and `special_tokens_map.json` by their stems;
    missing files are empty. Raises ModelError on a broken one.
    """
    names = ("config", "generation_config", "special_tokens_map", "tokenizer_config")
    return {name: _read(directory / f"{name}.json") for name in names}


def read_tokenizer(directory: Path, settings: Settings) -> HfTokenizer:
    """The tokenizer of a directory; raises ModelError."""
    path = directory / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # the library raises bare Exception on a malformed file
        raise ModelError(f"{path} is no tokenizer: {error}") from error
    special = special_tokens(settings)
    options = settings["tokenizer_config"]
    return HfTokenizer(
        tokenizer,
        bos=special.get("bos_token"),
        eos=special.get("eos_token"),
        add_bos=options.get("add_bos_token"),
        add_eos=options.get("add_eos_token"),
    )


def special_tokens(settings: Settings) -> dict[str, str]:
    """Special tokens by the names templates use (`bos_token`, …)."""
    found: dict[str, str] = {}
    for name, value in {**settings["special_tokens_map"], **settings["tokenizer_config"]}.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def read_template(directory: Path, settings: Settings) -> str | None:
    """The chat template's source: `chat_template.jinja`, else the tokenizer configuration's (`default` of several)."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = settings["tokenizer_config"].get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def context_tokens(settings: Settings) -> int:
    """The model's own context length; raises ModelError when the configuration names none."""
    config = settings["config"]
    for source in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
            if isinstance(source.get(key), int) and source[key] > 0:
                return int(source[key])
    raise ModelError("config.json names no context length (max_position_embeddings)")


def eos_ids(settings: Settings, tokenizer: HfTokenizer) -> frozenset[int]:
    """All end tokens: the generation configuration's, else the model configuration's, and the tokenizer's own."""
    value = settings["generation_config"].get("eos_token_id", settings["config"].get("eos_token_id"))
    listed = value if isinstance(value, list) else [value]
    return frozenset(token for token in [*listed, tokenizer.eos_id] if isinstance(token, int))


def default_sampling(settings: Settings) -> dict[str, float]:
    """Sampling the model's author recommends, by our names; empty when the configuration says greedy or nothing."""
    config = settings["generation_config"]
    names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
    names["repetition_penalty"] = "repetition"
    if not config.get("do_sample"):
        return {}
    return {ours: float(config[name]) for name, ours in names.items() if isinstance(config.get(name), int | float)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no object")
    return content
