"""The worker registry: what every process reports of itself under `$KV.WORKERS.<stage>.<wid>`, and control requests.

Heartbeats carry a time to live, so a silent process vanishes by itself; `up` deletes a dead child's key at once.
"""

from enum import StrEnum
from typing import Literal

import msgspec

STAGES = ("ingress", "tokenize", "router", "prefill", "decode")
"""Stages whose workers can be scaled, in the order of the flow."""


class State(StrEnum):
    """Life of a worker as an operator sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model a worker serves."""

    name: str
    revision: str = ""
    fingerprint: str = ""
    """Checksum of the weights with everything else that shapes the KV: part of every cache key."""
    max_tokens: int = 0
    """Context length in tokens."""
    created: int = 0
    """Unix seconds of the model file."""
    chat: bool = True
    """Whether the model has a chat template (reported by tokenize workers)."""
    kv_token_bytes: int = 0
    """Bytes of KV per token in the shared cache."""
    profile: str = ""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One heartbeat of one process."""

    stage: str
    wid: str
    pid: int = 0
    state: State = State.STARTING
    models: tuple[ModelReport, ...] = ()
    active: int = 0
    """Requests held."""
    queued_tokens: int = 0
    """Tokens of work held but not done: prompt tokens for prefill, prompt + remaining output for decode."""
    taken: int = 0
    """Requests ever taken from its queue: tells a router which of its assignments this report includes."""
    slots: int = 0
    """Requests this worker can run at once."""
    prompt_tokens: int = 0
    """Of the work of a decode worker, prompt tokens it has to compute itself."""
    kv_free_tokens: int = 0
    """KV room, blocks kept only as cache included; 0 when unknown."""
    rate: float = 0.0
    """Measured tokens per second of stepping, prompt and generated alike; 0 when unknown, as for the others."""
    prompt_rate: float = 0.0
    """Measured prompt tokens per second."""
    token_rate: float = 0.0
    """Measured generated tokens per second, of a batch of the present size."""
    fetch_rate: float = 0.0
    """Measured bytes per second of blocks out of the store."""
    cache_ok: bool = False
    """Whether the block store answered lately."""
    metrics: str = ""
    """URL of this process's Prometheus metrics."""
    url: str = ""
    started_ms: int = 0
    v: int = 1


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Control request to the supervisor: wanted number of workers per stage."""

    stages: dict[str, int]


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Control request to the supervisor: drain and stop one worker."""

    wid: str


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a control request."""

    status: Literal["ok", "refused"]
    message: str = ""
