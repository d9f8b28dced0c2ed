"""The scripted model as this stage serves it, requests for it, and a provisioned in-memory server."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headrace.shared import streams
from headrace.shared.bus.memory import MemoryBus, MemoryServer
from headrace.shared.catalogue import ModelFiles
from headrace.shared.ids import new_rid
from headrace.shared.messages import Accepted, Deadlines, Prompt, Request, Text
from headrace.shared.text.chat import Chat
from headrace.shared.text.model import load_text_model
from headrace.tokenize.handle import Served


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """The scripted model: 262 ids, a context of 8192 tokens."""
    model = load_text_model(ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="00"))
    assert model.template is not None
    chat = Chat(model.name, model.template, timeout_s=10)
    yield Served(model, chat)
    chat.close()


@pytest.fixture
def accepted() -> Callable[..., Accepted]:
    """Make an accepted request; keywords are fields of the request."""

    def make(prompt: Prompt | None = None, **fields: object) -> Accepted:
        defaults = {
            "rid": new_rid(),
            "ing": "ingress-1",
            "model": "scripted",
            "deadlines": Deadlines(queue_s=30, first_token_s=60, stall_s=15, total_s=600),
        }
        return Accepted(request=Request(**{**defaults, **fields}), prompt=prompt or Text(text="hi"))

    return make


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A connection to a provisioned server of its own."""
    bus = MemoryServer().connect()
    assert await streams.provision(bus) == []
    yield bus
    await bus.close()
