"""The worker list of a running instance, as the client verbs look at it."""

import time
from collections.abc import Callable
from typing import Any

from headrace.cli.api import Api, ApiError

LIMIT_S = 120.0
"""How long `scale` and `drain` wait for what they asked for."""

COLUMNS = ("stage", "wid", "pid", "state", "queue", "active", "model", "revision", "metrics")


def workers(api: Api) -> list[dict[str, Any]]:
    """All processes, each with the keys of `COLUMNS`; raises ApiError."""
    answer = api.get("/headrace/workers")
    if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
        raise ApiError("the answer is not a list of workers: is this a headrace instance?")
    return [{column: item.get(column) for column in COLUMNS} for item in answer]


def wait_until(
    api: Api, is_done: Callable[[list[dict[str, Any]]], bool], *, limit_s: float = LIMIT_S, every_s: float = 0.25
) -> bool:
    """Look at the worker list until `is_done` likes it; False after `limit_s`.

    A failed look counts as no look: the ingress that was asked may be the one that is being stopped.
    """
    give_up_at = time.monotonic() + limit_s
    while True:
        try:
            if is_done(workers(api)):
                return True
        except ApiError:
            if time.monotonic() >= give_up_at:
                raise
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(every_s)


def num_ready(listed: list[dict[str, Any]], stage: str) -> int:
    """Workers of a stage that take work."""
    return sum(1 for worker in listed if worker["stage"] == stage and worker["state"] == "ready")
