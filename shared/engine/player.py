"""Plays one choice of a script token by token: a small machine over emit, draw, pause and fault actions.

Knows neither blocks nor batches; time and entropy are handed in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from headrace.shared.messages import Script, ScriptStep

EOS = 257
VOCAB_SIZE = 262
FIRST_TEXT_ID = 1000
"""Id of the text token of a choice's step 0; step i has this + i."""
MOST_TOKENS = 64
"""Most tokens taken at once."""

_ALPHABET = tuple(range(ord("a"), ord("z") + 1))
_PRINTABLE = bytes(32 + byte % 95 for byte in range(256))

FaultKind = Literal["exit", "hang", "raise"]


@dataclass(frozen=True, slots=True)
class Emit:
    """Emit these ids."""

    ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens until the action is over."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Draw:
    """Emit printable bytes from the operating system's entropy."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Emit nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Break, on the first `attempts` leases only."""

    kind: FaultKind
    attempts: int


Action = Emit | Draw | Pause | Fault


@dataclass(frozen=True, slots=True)
class Score:
    """A choice made ready to play: once through `actions`, then `loop_from`… for ever."""

    actions: tuple[Action, ...]
    loop_from: int
    num_stop_free: int = 0
    """Leading tokens that are quoted and cannot end the sequence."""


def steps_of(script: Script, choice: int) -> Sequence[ScriptStep]:
    """The steps of one choice; a script with fewer lists than choices starts over with its first."""
    return script.choices[choice % len(script.choices)] if script.choices else ()


def compose(script: Script | None, choice: int, prompt: Sequence[int]) -> Score:
    """Make one choice ready to play. Raises ValueError naming what cannot be played.

    Without a script the alphabet is played for ever; a script without `repeat` is followed by end tokens.
    """
    if script is not None and script.show_prompt:
        if script.choices:
            raise ValueError("script: show_prompt leaves nothing to play for choices")
        num_quoted = len(prompt)
        return _score([Emit(tuple(prompt))], repeat=script.repeat, num_stop_free=num_quoted)
    if script is None or not script.choices:
        return _score([Emit(_ALPHABET)], repeat=True)
    actions = [_action(step, index) for index, step in enumerate(steps_of(script, choice))]
    return _score(actions, repeat=script.repeat)


def _score(actions: Sequence[Action], *, repeat: bool, num_stop_free: int = 0) -> Score:
    merged = [action for action in _merge(actions) if not isinstance(action, Emit | Draw) or action.num_tokens]
    if not repeat:
        return Score((*merged, Emit((EOS,) * MOST_TOKENS)), len(merged), num_stop_free)
    if not any(isinstance(action, Emit | Draw) for action in merged):
        raise ValueError("script: repeats without ever emitting a token")
    if len(merged) == 1 and isinstance(merged[0], Emit):  # longer runs are played in fewer steps
        merged = [Emit(merged[0].ids * -(-MOST_TOKENS // merged[0].num_tokens))]
    return Score(tuple(merged), 0, num_stop_free)


def _merge(actions: Iterable[Action]) -> Iterable[Action]:
    """Join neighbouring runs of ids."""
    for is_emit, group in groupby(actions, lambda action: isinstance(action, Emit)):
        if is_emit:
            yield Emit(tuple(token for action in group if isinstance(action, Emit) for token in action.ids))
        else:
            yield from group


def _action(step: ScriptStep, index: int) -> Action:
    chosen = [step.text, step.ids, step.pause_ms, step.random, step.fault, step.eos or None]
    if sum(field is not None for field in chosen) != 1:
        raise ValueError(f"script: step {index} must hold exactly one action")
    if step.text is not None:
        return Emit((FIRST_TEXT_ID + index,))
    if step.ids is not None:
        if not all(0 <= token < VOCAB_SIZE for token in step.ids):
            raise ValueError(f"script: step {index} holds an id outside the vocabulary of {VOCAB_SIZE}")
        return Emit(tuple(step.ids))
    if min(step.pause_ms or 0, step.random or 0) < 0:
        raise ValueError(f"script: step {index} holds a negative number")
    if step.pause_ms is not None:
        return Pause(step.pause_ms / 1000)
    if step.random is not None:
        return Draw(step.random)
    return Fault(step.fault, step.attempts) if step.fault is not None else Emit((EOS,))


class Player:
    """Where one sequence is in its score. `num_played` tokens were emitted by an earlier holder."""

    def __init__(self, score: Score, *, attempt: int, num_played: int, entropy: Callable[[int], bytes]) -> None:
        self._score = score
        self._attempt = attempt
        self._entropy = entropy
        self._index = 0
        self._offset = 0
        self.due: float | None = None
        """When the current pause ends, once it has begun."""
        self._skip(num_played)

    def is_paused(self, now: float) -> bool:
        """Whether nothing can be emitted before `due`."""
        return self.due is not None and now < self.due

    def poll(self, now: float) -> FaultKind | None:
        """Begin or leave pauses; returns the fault to break with, if one is due."""
        while True:
            action = self._score.actions[self._index]
            if isinstance(action, Pause):
                self.due = self.due if self.due is not None else now + action.seconds
                if self.is_paused(now):
                    return None
            elif isinstance(action, Fault):
                if self._attempt <= action.attempts:
                    return action.kind
            else:
                return None
            self._next()

    def take(self, most: int = MOST_TOKENS) -> list[int]:
        """Emit up to `most` tokens, stopping before a pause or a fault."""
        taken: list[int] = []
        while len(taken) < most:
            action = self._score.actions[self._index]
            left = most - len(taken)
            if isinstance(action, Emit):
                ids: Sequence[int] = action.ids[self._offset : self._offset + left]
            elif isinstance(action, Draw):
                ids = self._entropy(min(left, action.num_tokens - self._offset)).translate(_PRINTABLE)
            else:
                break
            taken += ids
            self._pass(action, len(ids))
        return taken

    def _skip(self, num_tokens: int) -> None:
        while num_tokens:
            action = self._score.actions[self._index]
            if isinstance(action, Emit | Draw):
                num_passed = min(num_tokens, action.num_tokens - self._offset)
                self._pass(action, num_passed)
                num_tokens -= num_passed
            else:
                self._next()

    def _pass(self, action: Emit | Draw, num_tokens: int) -> None:
        self._offset += num_tokens
        if self._offset == action.num_tokens:
            self._next()

    def _next(self) -> None:
        self._index += 1
        if self._index == len(self._score.actions):
            self._index = self._score.loop_from
        self._offset = 0
        self.due = None
