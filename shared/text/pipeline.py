"""Generated token ids to typed events: incremental decoding, special tokens, stop strings and stop ids.

The text is a pure function of the id sequence: any grouping of `push` calls gives the same joined text and the same
state, so a successor that replays logged ids continues exactly where its predecessor stopped.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.shared.messages import Sampling
from headrace.shared.records import Cause, EndEvent, Event, TextEvent, TextState
from headrace.shared.text.incremental import IncrementalDecoder
from headrace.shared.text.stop import StopMatcher
from headrace.shared.text.tokenizer import Tokenizer

VERSION = 1
"""Version of the text pipeline, part of every checkpoint."""
_MAX_CHAR_BYTES = 4


class TextPipeline:
    """The text of one choice."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        extra: Mapping[int, bytes] | None = None,
        *,
        prompt: Sequence[int] = (),
    ) -> None:
        """`extra` gives the bytes of ids outside the vocabulary (steps of a script); it may grow meanwhile.

        `prompt`: the prompt's ids (the last few suffice), so that a character cut by its end is completed.
        """
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._extra: Mapping[int, bytes] = {} if extra is None else extra
        self._decoder = IncrementalDecoder()
        self._matcher = StopMatcher(sampling.stop, include=sampling.include_stop)
        self._decoder.push(b"".join(map(self._tokenizer.token_bytes, prompt[-_MAX_CHAR_BYTES:])))
        self._num_chars = 0
        self.num_consumed = 0
        """Ids taken in; ids after a match are not."""
        self.match: str | int | None = None
        """The stop string or stop id that ended the choice."""

    @property
    def state(self) -> TextState:
        """Checkpoint after the ids pushed so far."""
        return TextState(chars=self._num_chars, parser=VERSION)

    def push(self, ids: Iterable[int]) -> list[Event]:
        """Take generated ids in; at most one text event comes out."""
        return self._release("".join(map(self._consume, ids)))

    def replay(self, ids: Iterable[int]) -> None:
        """Take in ids whose events are in the log already."""
        self.push(ids)

    def finish(self, cause: Cause, match: str | int | None = None) -> list[Event]:
        """End of the choice: held-back text, then the end event. A match found here overrides `cause` and `match`."""
        events: list[Event] = []
        if not isinstance(self.match, str):
            released, found = self._matcher.push(self._decoder.flush())
            self._note(found)
            events = self._release(released + self._matcher.flush())
        if self.match is not None:
            return [*events, EndEvent("stop", self.match)]
        return [*events, EndEvent(cause, match)]

    def _consume(self, token: int) -> str:
        if self.match is not None:
            return ""
        self.num_consumed += 1
        is_stop = token in self._sampling.stop_ids
        text, match = self._matcher.push(self._decoder.push(self._bytes(token, is_stop=is_stop)))
        self._note(match)
        if is_stop:
            self._note(token)
        return text

    def _bytes(self, token: int, *, is_stop: bool) -> bytes:
        sampling = self._sampling
        is_hidden = token in self._tokenizer.special_ids and sampling.skip_special
        if is_hidden or (is_stop and not sampling.include_stop):
            return b""
        known = self._extra.get(token)
        return self._tokenizer.token_bytes(token) if known is None else known

    def _note(self, match: str | int | None) -> None:
        if match is not None and self.match is None:
            self.match = match

    def _release(self, text: str) -> list[Event]:
        if not text:
            return []
        self._num_chars += len(text)
        return [TextEvent(text)]
