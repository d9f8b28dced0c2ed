"""The dialects: the Adapter contract and the table of all generation routes."""

from headrace.ingress.protocols import openai_chat, openai_completions
from headrace.ingress.protocols.contract import Adapter, Encoder, Head, Parsed, Terms

PROTOCOLS: tuple[Adapter, ...] = (openai_chat.ADAPTER, openai_completions.ADAPTER)

__all__ = ["PROTOCOLS", "Adapter", "Encoder", "Head", "Parsed", "Terms"]
