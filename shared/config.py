"""Configuration as data: one frozen Struct per room. `settings` fills it in.

A line under a field is its documentation (`headrace config ROOM`).
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from headrace.shared.errors import ConfigError
from headrace.shared.reports import STAGES

MAX_WORKERS = 64
"""Most workers of one stage in one instance."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Profile = Literal["auto", "fp32", "bf16", "int4", "w8a8"]
_ROW_INVARIANT = (None, "auto", "w8a8")


def _default_data_dir() -> str:
    return str(Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "headrace")


def _default_models_dir() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return os.environ.get("HEADRACE_MODELS_DIR") or str(cache / "headrace" / "models")


class Room(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parent of all rooms: frozen, unknown keys refused."""


class Up(Room, frozen=True):
    """The supervisor `headrace up`."""

    host: str = "127.0.0.1"
    """Address the HTTP ingress listens on."""
    port: Port = 8080
    """Port the HTTP ingress listens on."""
    data_dir: str = msgspec.field(default_factory=_default_data_dir)
    """Where NATS data, logs and the lock live; one instance per directory."""
    workers: dict[str, int] = {}
    """Workers per stage; stages not named get one."""
    insecure_dev: bool = False
    """Allow an address other than loopback without keys."""
    restart_backoff_s: Positive = 1.0
    """Shortest wait before a dead child is started again; doubles up to 30 s while it keeps dying."""
    drain_s: Positive = 25.0
    """Longest a child may take to drain before it is killed."""
    ready_timeout_s: Positive = 300.0
    """Longest wait for the first ready state before giving up."""
    hang_s: Positive = 60.0
    """A worker that lives but has not reported for this long is killed and started again."""

    def __post_init__(self) -> None:
        for stage, count in self.workers.items():
            if stage not in STAGES:
                raise ValueError(f"workers: unknown stage {stage!r} (stages: {', '.join(STAGES)})")
            if not 0 <= count <= MAX_WORKERS:
                raise ValueError(f"workers: {stage}={count}: between 0 and {MAX_WORKERS} workers can be asked for")


class Nats(Room, frozen=True):
    """The queue server."""

    url: str = ""
    """Server URL; empty lets `up` start an embedded server."""
    connect_s: Positive = 10.0
    """How long a stage tries to reach the server at start before it exits 78."""
    max_file_store_bytes: Count = 8 << 30
    """Disk budget of the embedded server."""
    sync_interval: str = "1s"
    """How often the embedded server flushes to disk (`always` for every write)."""


class Cache(Room, frozen=True):
    """The shared store of KV blocks (Valkey)."""

    url: str = ""
    """`redis://` or `unix://` URL; empty lets `up` start an embedded server; `off` disables the shared cache."""
    max_bytes: Count = 1 << 30
    """Memory budget of the embedded server; least recently used blocks are evicted."""
    ttl_s: Count = 3600
    """Life of a block that nobody reads."""
    budget_s: Positive = 0.25
    """Fixed part of the time budget of one round trip; 5 ms per MiB are added."""
    breaker_s: Positive = 5.0
    """How long the store is left alone after it failed."""
    salt: str = ""
    """Mixed into every key; instances with different salts never share blocks."""


class Model(Room, frozen=True):
    """Which models are served."""

    names: tuple[str, ...] = ("smollm2-135m-instruct",)
    """Catalogue names, local paths or `hf:org/name`; the first is the default."""
    dir: str = msgspec.field(default_factory=_default_models_dir)
    """Where model files are kept, shared between instances."""
    max_context: int = 0
    """Cut the context length to this many tokens; 0 keeps the model's own."""
    default_sampling: dict[str, float] = {}
    """Sampling used where a request says nothing: temperature, top_p, top_k, min_p, repetition."""
    chat_template: str = ""
    """Path of a Jinja2 file that replaces the models' own chat template."""

    def __post_init__(self) -> None:
        if self.max_context < 0:
            raise ValueError("max_context must be 0 or positive")
        if not self.names:
            raise ValueError("names must hold at least one model")
        unknown = set(self.default_sampling) - {"temperature", "top_p", "top_k", "min_p", "repetition"}
        if unknown:
            raise ValueError(f"default_sampling has no key {min(unknown)!r}")


class Engine(Room, frozen=True):
    """The inference engine inside prefill and decode workers."""

    profile: Profile = "auto"
    """Numeric form of the weights."""
    deterministic: bool = False
    """Keep one row-invariant numeric form, so that equal requests give equal tokens in any batch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors live."""
    kv_bytes: int = 0
    """Memory for KV blocks of one model in one worker, taken at its start; 0 picks a share of the machine's memory."""
    block_tokens: Count = 16
    """Tokens per KV block."""
    step_tokens: Count = 256
    """Most tokens computed in one step, prompt chunks and generated rows together."""
    threads: int = 0
    """Compute threads of one worker; 0 divides the cores between the engines that are busy."""

    def __post_init__(self) -> None:
        if self.kv_bytes < 0 or self.threads < 0:
            raise ValueError("kv_bytes and threads must be 0 or positive")


class Ingress(Room, frozen=True):
    """The HTTP front door."""

    keepalive_s: Positive = 15.0
    """Longest silence on a stream before a keep-alive comment."""
    commit_after_s: Positive = 10.0
    """How long the status line of a stream is held back for the first token."""
    write_timeout_s: Positive = 30.0
    """Longest one write to a slow client may block before the stream is closed."""
    body_timeout_s: Positive = 15.0
    """Longest a client may take to send its body."""
    absence_grace_s: Positive = 15.0
    """How long a stage may be without a ready worker before new requests are refused."""
    silence_s: Positive = 1.0
    """A request silent for this long is checked against its run log."""
    drain_s: Positive = 20.0
    """How long running streams may go on after SIGTERM."""


class Tokenize(Room, frozen=True):
    """The tokenize stage."""

    escape_special: bool = False
    """Encode special-token strings inside user text as plain text."""
    render_timeout_s: Positive = 2.0
    """Longest a chat template may run."""
    concurrency: Count = 8
    """Items worked on at once."""


class Router(Room, frozen=True):
    """The router stage."""

    direct_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Prompts with fewer tokens skip the prefill stage; 0 compares the measured time of both ways for each prompt."""
    sweep_s: Positive = 5.0
    """How often items of dead workers are looked for."""


class Prefill(Room, frozen=True):
    """The prefill stage."""

    profile: Profile | None = None
    """Overrides `engine.profile`."""
    slots: Count = 16
    """Prompts worked on at once."""


class Decode(Room, frozen=True):
    """The decode stage."""

    profile: Profile | None = None
    """Overrides `engine.profile`."""
    slots: Count = 32
    """Requests generated at once."""
    chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 64
    """Most tokens in one record."""
    max_attempts: Count = 3
    """Worker deaths after which a request is given up as poison."""


class Timeouts(Room, frozen=True):
    """The clocks of one request, seconds."""

    connect_s: Positive = 5.0
    """From a client's connection to the end of its first request's head; a slower or silent one is cut off."""
    queue_s: Positive = 30.0
    """From acceptance until a decode worker takes the request."""
    first_token_s: Positive = 60.0
    """From acceptance until the first token."""
    stall_s: Positive = 15.0
    """Between tokens once the first came."""
    total_s: Positive = 600.0
    """From acceptance until the end."""


class Limits(Room, frozen=True):
    """Admission limits."""

    max_concurrent: Count = 256
    """Requests one ingress holds at once; more are refused with 503."""
    max_batch: Count = 64
    """Sequences in one engine step."""
    max_input_tokens: int = 0
    """Longest prompt; 0 leaves it to the model's context."""
    max_output_tokens: int = 0
    """Most tokens one request may generate; 0 leaves it to the model's context."""
    max_body_bytes: Count = 2 << 20
    """Largest HTTP body."""


class Log(Room, frozen=True):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written."""
    dir: str = ""
    """Directory of log files; empty writes to stderr only."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rooms."""

    up: Up = Up()
    nats: Nats = Nats()
    cache: Cache = Cache()
    model: Model = Model()
    engine: Engine = Engine()
    ingress: Ingress = Ingress()
    tokenize: Tokenize = Tokenize()
    router: Router = Router()
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    log: Log = Log()


ROOMS: tuple[str, ...] = Config.__struct_fields__


def room_type(room: str) -> type[Room]:
    """The Struct class of a room."""
    kind = Config.__annotations__[room]
    assert isinstance(kind, type)
    assert issubclass(kind, Room)
    return kind


def refuse_unavailable(config: Config) -> None:
    """Raise ConfigError for what no engine of a real model offers; asked before anything is loaded or started."""
    for name, room in (("engine", config.engine), ("prefill", config.prefill), ("decode", config.decode)):
        if config.engine.deterministic and room.profile not in _ROW_INVARIANT:
            raise ConfigError(
                f"{name}.profile={room.profile} is not row-invariant; engine.deterministic=true takes auto or w8a8"
            )
