"""POST /v1/completions: one text or one list of token ids in, `text_completion` objects out."""

from collections.abc import Sequence

import msgspec

from headrace.ingress.protocols.contract import Adapter, Head, Parsed, Terms
from headrace.ingress.protocols.fields import Fields, as_integer, invalid, missing, unsupported, wrong_type
from headrace.ingress.protocols.openai_encoder import OpenAIEncoder, Shape
from headrace.ingress.protocols.options import Render, read_model, read_shared
from headrace.ingress.protocols.refused import refuse_unsupported
from headrace.ingress.protocols.sampling import read_limit, read_sampling
from headrace.ingress.protocols.script import read_script
from headrace.shared.messages import Prompt, Text, Tokens
from headrace.shared.packing import pack_ids

_DEFAULT_LIMIT = 16
_MAX_LOGPROBS = 5
_MAX_ID = 2**32 - 1
_EXPECTED = "a string or an array of token ids"


def parse(fields: Fields, terms: Terms) -> Parsed:
    """Validate a completions body; raises RequestError naming the field at fault."""
    model = read_model(fields)
    prompt = _prompt(fields)
    shared = read_shared(fields)
    refuse_unsupported(fields)
    if fields.integer("logprobs", 0, _MAX_LOGPROBS) is not None:
        raise unsupported("logprobs", "is not supported by this server")
    sampling = read_sampling(fields, terms)
    limit = read_limit(fields, "max_tokens", 0, terms)
    script = read_script(fields, model)
    return Parsed(
        model=model,
        prompt=prompt,
        sampling=sampling,
        max_new=_DEFAULT_LIMIT if limit is None else limit,
        stream=shared.stream,
        render=msgspec.msgpack.encode(shared.render),
        return_token_ids=shared.render.token_ids,
        cache_salt=shared.cache_salt,
        session=shared.session,
        script=script,
        ignored=(*fields.unread(), *shared.ignored),
    )


def encoder(head: Head, render: bytes) -> OpenAIEncoder:
    """Renders one completion."""
    return OpenAIEncoder(head, msgspec.msgpack.decode(render, type=Render), _SHAPE)


def _prompt(fields: Fields) -> Prompt:
    if "prompt" not in fields.values:
        raise missing("prompt")
    prompt = fields.take("prompt")
    add_special = fields.boolean("add_special_tokens", default=True)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None or isinstance(prompt, str):
        return Text(text=prompt or "", add_special=add_special)
    if not isinstance(prompt, list):
        raise wrong_type("prompt", _EXPECTED, prompt)
    if not prompt:
        raise invalid("prompt", "must not be empty", "empty_array")
    if all(isinstance(part, str) for part in prompt) or all(isinstance(part, list) for part in prompt):
        raise unsupported("prompt", "must be one prompt: several are not supported", "unsupported_value")
    return Tokens(ids=_pack(prompt))


def _pack(ids: Sequence[object]) -> bytes:
    if set(map(type, ids)) == {int}:
        try:
            return pack_ids(ids)  # type: ignore[arg-type]  # every element is an int
        except OverflowError:
            pass  # the slow way below finds which one and says so
    return pack_ids(as_integer(value, f"prompt[{index}]", 0, _MAX_ID) for index, value in enumerate(ids))


def _choice(text: str) -> dict[str, object]:
    return {"text": text}


_SHAPE = Shape(
    id_prefix="cmpl-",
    chunk_object="text_completion",
    reply_object="text_completion",
    opening=None,
    text_open=b',"text":',
    text_close=b"",
    empty=b',"text":""',
    choice=_choice,
)
ADAPTER = Adapter(protocol="completion", path="/completions", prompt_param="prompt", parse=parse, encoder=encoder)
