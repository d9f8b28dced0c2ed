"""`headrace chat`: one question to the first model, its answer written as it comes."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.cli.api import Api, ApiError, error_message

_SILENCE_S = 660.0
"""Longest wait for the next byte: above the longest life of a request; keep-alives come far more often."""


def run(args: argparse.Namespace) -> int:
    """Print the answer's text; raises ApiError with the server's message when it fails."""
    api = Api(args.url)
    body = {"model": _first_model(api), "messages": [{"role": "user", "content": args.text}], "stream": True}
    with api.exchange("POST", "/v1/chat/completions", body, timeout_s=_SILENCE_S) as answer:
        for text in texts(answer):
            sys.stdout.write(text)
            sys.stdout.flush()
    print()
    return 0


def texts(lines: Iterable[bytes]) -> Iterator[str]:
    """Pieces of text in a stream of server-sent events; raises ApiError when it reports an error or breaks off."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ApiError(error_message(data, "the answer failed"))
        for choice in chunk.get("choices", ()):
            if text := (choice.get("delta") or {}).get("content"):
                yield text
    raise ApiError("the answer broke off")


def _first_model(api: Api) -> str:
    listed: Any = api.get("/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ApiError("no model is served at the moment") from None
