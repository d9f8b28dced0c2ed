"""Conversations to prompt text: role repair, template variables, open last turns, errors in the caller's words.

Knows one model's template at a time and no token ids.
"""

import secrets

from headrace.shared.errors import Code, RequestError
from headrace.shared.messages import Conversation
from headrace.shared.text.escape import Guard
from headrace.shared.text.renderer import Renderer, TemplateFaultError, TemplateRefusedError
from headrace.shared.text.roles import probe, repair, to_messages
from headrace.shared.text.template import ChatTemplate


class Chat:
    """The chat template of one model, probed and ready. Thread-safe; owns a child process until closed."""

    def __init__(self, model: str, template: ChatTemplate, *, timeout_s: float) -> None:
        """`timeout_s` bounds each rendering, the probes included."""
        self._model = model
        self._renderer = Renderer(template, timeout_s)
        # The mark ends in a space: where the template trims the last turn, the space is gone.
        self._mark = f"\ufdd2{secrets.token_hex(8)} "
        self.capabilities = probe(template.source, self._try)

    def render(self, conversation: Conversation, guard: Guard | None = None) -> str:
        """The prompt text of a conversation; with `guard` only the template's own special tokens stay such.

        Raises RequestError (INVALID_PROMPT, INVALID_REQUEST).
        """
        options = conversation.template
        if not conversation.turns:
            raise RequestError(Code.INVALID_PROMPT, "messages must not be empty", param="messages")
        if options.continue_final:
            _check_continuable(conversation)
        messages = to_messages(repair(conversation.turns, self.capabilities))
        variables = {**options.kwargs, "messages": messages, "tools": None}
        if guard is not None:
            hidden = guard.hide_all(variables)
            assert isinstance(hidden, dict)
            variables, messages = hidden, hidden["messages"]
        if options.continue_final:
            messages[-1]["content"] = f"{messages[-1]['content']}{self._mark}"
        text = self._run({**variables, "add_generation_prompt": options.add_generation_prompt})
        if options.continue_final:
            text = self._cut(text)
        return text if guard is None else guard.seal(text)

    def close(self) -> None:
        """End the child process; idempotent."""
        self._renderer.close()

    def _run(self, variables: dict[str, object]) -> str:
        try:
            return self._renderer.render(variables)
        except TemplateRefusedError as error:
            raise RequestError(Code.INVALID_PROMPT, str(error), param="messages") from error
        except TemplateFaultError as error:
            message = f"the chat template of model {self._model} cannot render these messages: {error}"
            raise RequestError(Code.INVALID_PROMPT, message, param="messages") from error

    def _cut(self, text: str) -> str:
        """Leave the last turn open: everything after the mark belongs to its closing."""
        head, found, tail = text.rpartition(self._mark.rstrip())
        if not found:
            message = f"the chat template of model {self._model} changes the last message: it cannot be continued"
            raise RequestError(Code.INVALID_PROMPT, message, param="continue_final_message")
        return head if tail.startswith(" ") else head.rstrip()

    def _try(self, messages: list[dict[str, object]]) -> str | None:
        try:
            return self._renderer.render({"messages": messages, "tools": None, "add_generation_prompt": True})
        except TemplateFaultError:
            return None


def _check_continuable(conversation: Conversation) -> None:
    if conversation.template.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt cannot both be true"
        raise RequestError(Code.INVALID_REQUEST, message, param="continue_final_message")
    if conversation.turns[-1].role != "assistant":
        message = "continue_final_message needs an assistant message at the end"
        raise RequestError(Code.INVALID_REQUEST, message, param="continue_final_message")
