"""POST /v1/chat/completions: a conversation in, `chat.completion` objects out."""

import msgspec

from headrace.ingress.protocols.contract import Adapter, Head, Parsed, Terms
from headrace.ingress.protocols.fields import Fields, invalid, unsupported
from headrace.ingress.protocols.openai_encoder import OpenAIEncoder, Shape
from headrace.ingress.protocols.options import Render, read_model, read_shared, refuse_true
from headrace.ingress.protocols.refused import refuse_unsupported
from headrace.ingress.protocols.sampling import read_limit, read_sampling
from headrace.ingress.protocols.script import read_script
from headrace.ingress.protocols.turns import check_free_form, read_turns
from headrace.shared.messages import Conversation, Template, Turn

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_VERBOSITIES = ("low", "medium", "high")
_MAX_LOGPROBS = 20
_RESERVED = ("messages", "tools")


def parse(fields: Fields, terms: Terms) -> Parsed:
    """Validate a chat body; raises RequestError naming the field at fault."""
    model = read_model(fields)
    turns, ignored_parts = read_turns(fields, model)
    shared = read_shared(fields)
    refuse_unsupported(fields)
    _refuse_logprobs(fields)
    if fields.boolean("add_special_tokens"):
        raise unsupported("add_special_tokens", "must be false: the template writes them", "unsupported_value")
    template, ignored_kwargs = _template(fields, turns)
    sampling = read_sampling(fields, terms)
    max_new = _max_new(fields, terms)
    script = read_script(fields, model)
    return Parsed(
        model=model,
        prompt=Conversation(turns=turns, template=template),
        sampling=sampling,
        max_new=max_new,
        stream=shared.stream,
        render=msgspec.msgpack.encode(shared.render),
        return_token_ids=shared.render.token_ids,
        cache_salt=shared.cache_salt,
        session=shared.session,
        script=script,
        ignored=(*fields.unread(), *shared.ignored, *ignored_parts, *ignored_kwargs),
    )


def encoder(head: Head, render: bytes) -> OpenAIEncoder:
    """Renders one chat reply."""
    return OpenAIEncoder(head, msgspec.msgpack.decode(render, type=Render), _SHAPE)


def _max_new(fields: Fields, terms: Terms) -> int | None:
    old = read_limit(fields, "max_tokens", 1, terms)
    new = read_limit(fields, "max_completion_tokens", 1, terms)
    chosen = old if new is None else new
    return chosen if chosen is not None else terms.max_output_tokens or None


def _refuse_logprobs(fields: Fields) -> None:
    refuse_true(fields, "logprobs", "is not supported by this server")
    if fields.integer("top_logprobs", 0, _MAX_LOGPROBS):
        raise unsupported("top_logprobs", "needs logprobs, which this server does not support")


def _template(fields: Fields, turns: tuple[Turn, ...]) -> tuple[Template, list[str]]:
    kwargs, ignored = _template_kwargs(fields)
    continue_final = fields.boolean("continue_final_message")
    add_prompt = fields.boolean("add_generation_prompt", default=not continue_final)
    if continue_final and add_prompt:
        raise invalid("continue_final_message", "and add_generation_prompt must not both be true")
    if continue_final and (turns[-1].role != "assistant" or not turns[-1].text):
        raise invalid("messages", "must end with an assistant message with text when continue_final_message is true")
    return Template(kwargs=kwargs, add_generation_prompt=add_prompt, continue_final=continue_final), ignored


def _template_kwargs(fields: Fields) -> tuple[dict[str, object], list[str]]:
    """Template variables: hints first, the caller's own over them; what the template gets from us stays ours."""
    kwargs: dict[str, object] = {}
    effort = fields.choice("reasoning_effort", _EFFORTS)
    if effort is not None:
        kwargs |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    verbosity = fields.choice("verbosity", _VERBOSITIES)
    if verbosity is not None:
        kwargs["verbosity"] = verbosity
    own = fields.nested("chat_template_kwargs")
    if own is None:
        return kwargs, []
    check_free_form(own.values, "chat_template_kwargs")
    kwargs |= {name: value for name, value in own.values.items() if name not in _RESERVED}
    return kwargs, [own.at(name) for name in _RESERVED if name in own.values]


def _choice(text: str) -> dict[str, object]:
    return {"message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}}


_SHAPE = Shape(
    id_prefix="chatcmpl-",
    chunk_object="chat.completion.chunk",
    reply_object="chat.completion",
    opening=b',"delta":{"role":"assistant","content":"","refusal":null}',
    text_open=b',"delta":{"content":',
    text_close=b"}",
    empty=b',"delta":{}',
    choice=_choice,
)
ADAPTER = Adapter(protocol="chat", path="/chat/completions", prompt_param="messages", parse=parse, encoder=encoder)
