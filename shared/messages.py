"""What travels on the work queues: the request in its one canonical form and the two work items.

Protocol detail (dialect field names, response shapes) never appears here. Evolution follows msgspec's rules: new fields
get defaults, no field changes its type, unknown fields are ignored. msgpack on the wire.
"""

from typing import Literal

import msgspec

Protocol = Literal["chat", "completion", "responses", "messages"]
Class = Literal["int", "bat"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of an assistant turn in the conversation."""

    id: str
    name: str
    arguments: dict[str, object] | str
    """Parsed object, or the raw text when it did not parse."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation, every dialect mapped to the same four roles."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a conversation is rendered."""

    kwargs: dict[str, object] = {}
    """Extra template variables (`chat_template_kwargs`); cannot override `messages` or `tools`."""
    add_generation_prompt: bool = True
    continue_final: bool = False
    """Leave the last assistant turn open and continue it."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation", omit_defaults=True):
    """A prompt given as turns; rendered by the model's chat template, encoded without added special tokens."""

    turns: tuple[Turn, ...]
    template: Template = Template()


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text", omit_defaults=True):
    """A prompt given as one string; encoded with the tokenizer's special tokens unless told otherwise."""

    text: str
    add_special: bool = True


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens", omit_defaults=True):
    """A prompt given as token ids, used as they are; packed little-endian u32 (see `pack_ids`)."""

    ids: bytes


Prompt = Conversation | Text | Tokens


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request. None leaves a value to the model's `generation_config`, then to the neutral default."""

    temperature: float | None = None
    """0 is greedy (lowest id among ties); neutral default 1."""
    top_p: float | None = None
    top_k: int | None = None
    """Keep the k best; None or 0 is off."""
    min_p: float | None = None
    presence: float = 0.0
    frequency: float = 0.0
    """Presence and frequency penalties count generated tokens only."""
    repetition: float | None = None
    """Repetition penalty counts prompt and generated tokens; 1 is off."""
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """Always set by ingress: the caller's seed, or one drawn for the request. Noise is a function of
    (seed, choice, position), so another worker continues with the same text."""
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special: bool = True


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets of one request, seconds; ages are measured from stream timestamps, not from worker clocks."""

    queue_s: float
    first_token_s: float
    stall_s: float
    total_s: float


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a `scripted` choice; exactly one of the action fields is set."""

    text: str | None = None
    """Emit this text as one token, whatever its length."""
    ids: tuple[int, ...] | None = None
    pause_ms: int | None = None
    eos: bool = False
    random: int | None = None
    """Emit n tokens drawn from the operating system's entropy, so that a forked stream shows."""
    fault: Literal["exit", "hang", "raise"] | None = None
    attempts: int = 1
    """The fault happens on the first `attempts` leases of the request only."""


class Script(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the `scripted` model plays: one list of steps per choice."""

    choices: tuple[tuple[ScriptStep, ...], ...] = ()
    repeat: bool = False
    """Play the steps again and again until the token limit."""
    show_prompt: bool = False
    """Answer the rendered prompt."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything behind ingress needs to know of one accepted request, apart from its prompt."""

    rid: str
    ing: str
    """Id of the ingress whose `out.<ing>.>` subscription carries the reply."""
    model: str
    deadlines: Deadlines
    tenant: str = "default"
    cls: Class = "int"
    revision: str = ""
    created_ms: int = 0
    protocol: Protocol = "chat"
    n: int = 1
    max_new: int | None = None
    """Most tokens to generate; None fills the context."""
    overflow: Literal["reject", "clamp"] = "reject"
    """What to do when prompt + max_new exceed the context."""
    sampling: Sampling = Sampling()
    cache_salt: str = ""
    session: str = ""
    """Affinity hint (`session_id`, `prompt_cache_key`)."""
    return_token_ids: bool = False
    script: Script | None = None
    v: int = 1


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """TOKQ item `work.tok.<class>.<rid>`: a request as accepted."""

    request: Request
    prompt: Prompt
    deaths: dict[str, int] = {}
    """Worker deaths seen per stage while it held this item."""


class Tokenized(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Item of RTEQ, PREQ and DECQ: the request with its prompt as ids. Prompt text travels no further."""

    request: Request
    prompt_ids: bytes
    """Packed little-endian u32."""
    accepted_ms: int
    """TOKQ's stream timestamp: the zero of every deadline."""
    prefilled: int = 0
    """Leading prompt tokens whose blocks a prefill worker has put in the shared cache."""
    cached: int | None = None
    """Of these, tokens that were found in a cache rather than computed; None before prefill."""
    deaths: dict[str, int] = {}
    """Worker deaths seen per stage while it held this item. Decode's are in the run log's leases instead."""


def encode(message: msgspec.Struct) -> bytes:
    """Encode a wire Struct as msgpack."""
    return _ENCODER.encode(message)


_ENCODER = msgspec.msgpack.Encoder()
