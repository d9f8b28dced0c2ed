"""Reference prompts of the catalogue's models: rendered text, prompt ids and decoded answers are equal."""

import pytest

from headrace.shared.messages import Conversation, Turn
from headrace.shared.text.chat import Chat
