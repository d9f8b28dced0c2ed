"""The models of a tokenize worker: text side loaded, chat template probed, reported to the registry."""

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass

import structlog

from headrace.shared.catalogue import ModelFiles, resolve
from headrace.shared.config import Config
from headrace.shared.reports import ModelReport
from headrace.shared.text.chat import Chat
from headrace.shared.text.model import load_text_model
from headrace.tokenize.handle import Served

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Models:
    """All models of one worker, in serving order."""

    served: dict[str, Served]
    reports: tuple[ModelReport, ...]


def load_models(config: Config, stack: ExitStack) -> Models:
    """Load all configured models; what must be closed goes on `stack`. Raises ModelError."""
    served: dict[str, Served] = {}
    reports: list[ModelReport] = []
    for name in config.model.names:
        files = resolve(name, config.model.dir)
        one = _load_one(files, config)
        if one.chat is not None:
            stack.enter_context(closing(one.chat))
        served[files.name] = one
        reports.append(_report(files, one))
    return Models(served, tuple(reports))


def _load_one(files: ModelFiles, config: Config) -> Served:
    started = time.monotonic()
    model = load_text_model(files, template_override=config.model.chat_template, max_context=config.model.max_context)
    chat = None
    if model.template is not None:
        chat = Chat(model.name, model.template, timeout_s=config.tokenize.render_timeout_s)
    if config.tokenize.escape_special:
        model.tokenizer.encode("", add_special=False, escape=True)  # builds the escaping form now, not on a request
    log.info(
        "model_loaded",
        model=model.name,
        seconds=round(time.monotonic() - started, 2),
        chat=None if chat is None else str(chat.capabilities),
    )
    return Served(model, chat)


def _report(files: ModelFiles, served: Served) -> ModelReport:
    model = served.model
    return ModelReport(
        name=model.name,
        revision=model.revision,
        fingerprint=files.fingerprint,
        max_tokens=model.context_tokens,
        created=files.created,
        chat=served.chat is not None,
    )
