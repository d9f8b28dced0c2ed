"""Closed-loop load on a streaming `/v1/completions`, and what each request saw. Knows no server in particular.

Greedy, end-of-text ignored, one connection per request (one of the peers closes its connections). A chunk counts when
it carries text: TTFT runs from just before the request is sent to the first of them, a gap from one to the next, TPOT
is the time from the first to the last of them over the tokens after the first.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from workload import Ask

_LIMIT_S = 1200.0
_HEAD_START_S = 0.1
"""How long a long request has been on its way when the first short one follows."""


@dataclass(slots=True)
class Reply:
    """What became of one request. Times are seconds since the load began, or lengths in seconds."""

    started_s: float
    first_s: float | None = None
    """The first chunk with text."""
    last_s: float | None = None
    ended_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_chunks: int = 0
    num_tokens: int = 0
    """As the server counts them; chunks where it does not."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Time to the first text."""
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first."""
        if self.first_s is None or self.last_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From sending to the end of the stream."""
        return self.ended_s - self.started_s

    def take(self, event: dict[str, Any], now: float) -> None:
        """Note one event of the stream that arrived at `now`."""
        if event.get("error"):
            self.error = str(event["error"])[:200]
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]
            self.num_prompt_tokens = usage["prompt_tokens"]
            self.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices") or ():
            if choice.get("text"):
                self._take_text(now)

    def end(self, now: float) -> None:
        """The stream is over."""
        self.ended_s = now
        self.num_tokens = self.num_tokens or self.num_chunks
        if not self.error and not self.num_tokens:
            self.error = "no tokens"

    def _take_text(self, now: float) -> None:
        if self.last_s is None:
            self.first_s = now
        else:
            self.gaps_s.append(now - self.last_s)
        self.last_s = now
        self.num_chunks += 1


@dataclass(frozen=True, slots=True)
class Load:
    """All requests of one load."""

    replies: list[Reply]
    elapsed_s: float


class Caller:
    """Sends requests to one server and times them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = f"{url}/v1/completions"
        self._model = model
        self._began = time.perf_counter()

    def now(self) -> float:
        """Seconds since this caller was made."""
        return time.perf_counter() - self._began

    async def ask(self, ask: Ask, first_text: asyncio.Event | None = None) -> Reply:
        """Send one request and read its stream; `first_text` is set when text came or none will."""
        reply = Reply(started_s=self.now())
        try:
            async with self._session.post(self._url, json=self._body(ask)) as response:
                if response.status == 200:
                    await self._read(response, reply, first_text)
                else:
                    reply.error = f"{response.status} {(await response.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reply.error = f"{type(error).__name__}: {error}"[:200]
        reply.end(self.now())
        if first_text is not None:
            first_text.set()
        return reply

    async def _read(self, response: aiohttp.ClientResponse, reply: Reply, first_text: asyncio.Event | None) -> None:
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            reply.take(json.loads(data), self.now())
            if first_text is not None and reply.first_s is not None:
                first_text.set()

    def _body(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def closed_loop(url: str, model: str, asks: Iterable[Ask], clients: int) -> Load:
    """Send all `asks`, `clients` of them at a time."""
    async with _caller(url, model) as caller:
        queue, replies = iter(asks), list[Reply]()

        async def client() -> None:
            for ask in queue:
                replies.append(await caller.ask(ask))

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
        return Load(replies, caller.now())


async def one_by_one_behind(url: str, model: str, long: Iterable[Ask], short: Iterable[Ask]) -> Load:
    """Send `short` one after another, each while the next of `long` waits for its first text.

    Ends with the last of either. Of the long requests only one that failed is in the result, as an error, and it is
    the last one.
    """
    async with _caller(url, model) as caller:
        queue, replies = iter(short), list[Reply]()
        for ask in long:
            first_text = asyncio.Event()
            ahead = asyncio.create_task(caller.ask(ask, first_text))
            await asyncio.sleep(_HEAD_START_S)
            while not first_text.is_set() and (following := next(queue, None)):
                replies.append(await caller.ask(following))
            last = await ahead
            if last.error:
                replies.append(replace(last, error=f"the long request: {last.error}"))
                break
        return Load(replies, caller.now())


@asynccontextmanager
async def _caller(url: str, model: str) -> AsyncIterator[Caller]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S), connector=connector) as session:
        yield Caller(session, url, model)
