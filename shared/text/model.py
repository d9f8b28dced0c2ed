"""The text side of a model: tokenizer, chat template, context length, end tokens. Needs no tensors."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from headrace.shared.catalogue import ModelFiles
from headrace.shared.errors import ModelError
from headrace.shared.text import gguf_tokenizer, hf_files
from headrace.shared.text.gguf_metadata import Value, read_metadata
from headrace.shared.text.scripted import ScriptedTokenizer
from headrace.shared.text.template import ChatTemplate
from headrace.shared.text.tokenizer import Tokenizer

_SCRIPTED_CONTEXT = 8192
_CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TextModel:
    """What is needed to turn requests into ids and ids into text."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has no chat template."""
    eos_ids: frozenset[int]
    context_tokens: int
    fingerprint: str
    """sha256 hex over the weights' fingerprint and the template: what a revision of the model stands for."""
    created: int = 0
    default_sampling: dict[str, float] = field(default_factory=dict)
    """Sampling the model's author recommends: temperature, top_p, top_k, min_p, repetition."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 … vocab_size - 1."""
        return self.tokenizer.vocab_size

    @property
    def revision(self) -> str:
        """Short name of this set of weights and template."""
        return self.fingerprint[:12]


def load_text_model(files: ModelFiles, *, template_override: str = "", max_context: int = 0) -> TextModel:
    """Load the text side of a model; raises ModelError.

    `template_override` is the path of a Jinja2 file; `max_context` > 0 cuts the context length.
    """
    loaders = {"gguf": _from_gguf, "hf": _from_hf, "scripted": _scripted}
    parts = loaders[files.kind](files)
    template = parts.template
    if template_override:
        template = ChatTemplate(_read_template(Path(template_override)), parts.variables)
    if parts.context_tokens < 1:
        raise ModelError(f"model {files.name}: context length {parts.context_tokens} is not positive")
    source = "" if template is None else template.source
    return TextModel(
        name=files.name,
        tokenizer=parts.tokenizer,
        template=template,
        eos_ids=parts.eos_ids,
        context_tokens=min(parts.context_tokens, max_context) if max_context else parts.context_tokens,
        fingerprint=hashlib.sha256(f"{files.fingerprint}\n{source}".encode()).hexdigest(),
        created=files.created,
        default_sampling=parts.default_sampling,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the three kinds of model files have in common."""

    tokenizer: Tokenizer
    source: str | None
    variables: dict[str, str]
    eos_ids: frozenset[int]
    context_tokens: int
    default_sampling: dict[str, float] = field(default_factory=dict)

    @property
    def template(self) -> ChatTemplate | None:
        return None if self.source is None else ChatTemplate(self.source, self.variables)


def _scripted(_files: ModelFiles) -> _Parts:
    tokenizer = ScriptedTokenizer()
    assert tokenizer.eos_id is not None
    return _Parts(tokenizer, _CHATML, {}, frozenset([tokenizer.eos_id]), _SCRIPTED_CONTEXT)


def _from_gguf(files: ModelFiles) -> _Parts:
    metadata = read_metadata(files.path)
    return _Parts(
        tokenizer=gguf_tokenizer.from_gguf(metadata),
        source=_gguf_template(metadata),
        variables=_gguf_variables(metadata),
        eos_ids=_gguf_eos_ids(metadata),
        context_tokens=_gguf_context(metadata),
    )


def _gguf_template(metadata: dict[str, Value]) -> str | None:
    source = metadata.get("tokenizer.chat_template")
    return source if isinstance(source, str) else None


def _gguf_variables(metadata: dict[str, Value]) -> dict[str, str]:
    """Special tokens by the names templates use."""
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    texts = {f"{name}_token": gguf_tokenizer.token_of(metadata, key) for key, name in names.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _gguf_eos_ids(metadata: dict[str, Value]) -> frozenset[int]:
    """End of sequence, of turn and of message: a chat model may end with any of them."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return frozenset(cast("int", metadata[key]) for key in keys if isinstance(metadata.get(key), int))


def _gguf_context(metadata: dict[str, Value]) -> int:
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) else 0


def _from_hf(files: ModelFiles) -> _Parts:
    """A Hugging Face directory; one without `tokenizer.json` takes vocabulary and template from its one GGUF file."""
    settings = hf_files.read_settings(files.path)
    source, variables = hf_files.read_template(files.path, settings), hf_files.special_tokens(settings)
    if (files.path / "tokenizer.json").is_file():
        tokenizer = hf_files.read_tokenizer(files.path, settings)
    else:
        (vocabulary,) = files.path.glob("*.gguf")
        metadata = read_metadata(vocabulary)
        tokenizer = gguf_tokenizer.from_gguf(metadata)
        source, variables = source or _gguf_template(metadata), {**_gguf_variables(metadata), **variables}
    return _Parts(
        tokenizer=tokenizer,
        source=source,
        variables=variables,
        eos_ids=hf_files.eos_ids(settings, tokenizer),
        context_tokens=hf_files.context_tokens(settings),
        default_sampling=hf_files.default_sampling(settings),
    )


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"chat template {path} cannot be read: {error}") from error
