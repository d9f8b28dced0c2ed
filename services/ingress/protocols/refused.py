"""Features this server does not have, as one table: a request that needs one is refused, never served without it."""

from headrace.ingress.protocols.fields import Fields, unsupported

# Field → values that ask for nothing.
_PARAMETERS: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": (),
    "min_tokens": (0, 0.0),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "documents": ([],),
    "chat_template": (),
    "thinking": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
    "use_beam_search": (False,),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "prompt_embeds": (),
}
_VALUES: dict[str, tuple[object, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "include_reasoning": (True,),
    "length_penalty": (1, 1.0),
}
_MAX_CHOICES = 128


def refuse_unsupported(fields: Fields) -> None:
    """Raise RequestError for the first feature that is asked for and not there."""
    for name, neutral in _PARAMETERS.items():
        if _asks(fields.take(name), neutral):
            raise unsupported(fields.at(name), "is not supported by this server")
    for name, neutral in _VALUES.items():
        if _asks(fields.take(name), neutral):
            raise unsupported(fields.at(name), "has a value that this server does not support", "unsupported_value")
    _refuse_formats(fields)
    _refuse_choices(fields)


def _asks(value: object, neutral: tuple[object, ...]) -> bool:
    # JSON's 0 and false are different values, Python's are equal.
    return value is not None and not any(type(value) is type(same) and value == same for same in neutral)


def _refuse_formats(fields: Fields) -> None:
    response_format = fields.nested("response_format")
    if response_format is None:
        return
    kind = response_format.choice("type", ("text", "json_object", "json_schema"))
    if kind != "text":
        raise unsupported("response_format", "supports only the type text here", "unsupported_value")


def _refuse_choices(fields: Fields) -> None:
    num_choices = fields.integer("n", 1, _MAX_CHOICES)
    if num_choices is not None and num_choices > 1:
        raise unsupported("n", "must be 1: several choices are not supported", "unsupported_value")
    best_of = fields.integer("best_of", 1, _MAX_CHOICES)
    if best_of is not None and best_of > 1:
        raise unsupported("best_of", "must be 1: several candidates are not supported", "unsupported_value")
