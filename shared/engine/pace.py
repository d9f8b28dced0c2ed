"""How long steps take, as measured, and how many prompt tokens a step may hold so that nobody waits long. Numbers only.

Prompt tokens in a step delay the next token of every running stream, and all of a step delays whoever arrives in it.
"""

_KEPT = 0.8
"""Weight of what was known before, against one more measurement."""
_TELLING_ALONE = 32
_TELLING_BESIDE = 8
"""Prompts of fewer tokens in one step tell more of its fixed cost than of their own."""
_TELLING_STEPS = 3
"""So many steps make a rate; the first ones warm up."""
_LEAST_OWN_SHARE = 0.25
"""Of a step's time, at least this much belongs to its prompts, whatever the generated rows took alone."""

_CLOCK_S = 1e-7
"""What takes less was not timed."""

_UNMEASURED_TOKENS = 64
_LEAST_BESIDE_ROWS = 16
_LEAST_ALONE = 128
_UNNOTICED_S = 0.01
"""A pause in a stream that nobody notices."""
_LONGEST_S = 0.06
"""A step of prompts alone ends after about this long, for the sake of those who arrive in it."""


class Pace:
    """Decaying averages of step times."""

    def __init__(self) -> None:
        self._rows_s: dict[int, float] = {}
        """Seconds of a step of generated rows alone, by the bit length of their number."""
        self._alone_s = 0.0
        """Seconds per prompt token in a step of prompts alone."""
        self._near_s = 0.0
        """The same of prompts near their beginning."""
        self._num_near = 0
        self._beside_s = 0.0
        """The same beside generated rows, which share the fixed cost of a step, but get smaller portions."""

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second by steps of prompts alone, near their beginning; 0 when not measured.

        Tokens far into a prompt attend to more and take longer: workers are compared by what all of them compute.
        """
        return 1 / self._near_s if self._num_near >= _TELLING_STEPS else 0.0

    def rows_s(self, num_rows: int) -> float:
        """Seconds of a step of that many generated rows, or of the nearest number measured; 0 when there is none."""
        if not self._rows_s or not num_rows:
            return 0.0
        size = num_rows.bit_length()
        return self._rows_s[min(self._rows_s, key=lambda known: (abs(known - size), known))]

    def token_rate(self, num_rows: int) -> float:
        """Tokens generated per second by a batch of about that size; 0 when not measured."""
        seconds = self.rows_s(num_rows)
        return num_rows / seconds if seconds else 0.0

    def observe(self, num_rows: int, num_prompt: int, seconds: float, *, is_far: bool = False) -> None:
        """Learn from a step of `num_rows` generated rows and `num_prompt` prompt tokens; `is_far`: deep in a prompt."""
        if seconds <= _CLOCK_S:
            return
        if not num_prompt:
            if num_rows:
                size = num_rows.bit_length()
                self._rows_s[size] = _decayed(self._rows_s.get(size, 0.0), seconds)
            return
        rows_s = self.rows_s(num_rows)
        if rows_s and num_prompt >= _TELLING_BESIDE:
            own_s = max(seconds - rows_s, seconds * _LEAST_OWN_SHARE)
            self._beside_s = _decayed(self._beside_s, own_s / num_prompt)
        elif not num_rows and num_prompt >= _TELLING_ALONE:
            self._alone_s = _decayed(self._alone_s, seconds / num_prompt)
            if not is_far:
                self._near_s = _decayed(self._near_s, seconds / num_prompt)
                self._num_near += 1

    def prompt_budget(self, num_rows: int, most: int) -> int:
        """How many prompt tokens, at most `most`, a step of `num_rows` generated rows should compute.

        Beside running streams, as many as take no longer than the streams' own part; alone, as many as keep the step
        short. Never so few that prompts hardly advance.
        """
        token_s = (self._beside_s or self._alone_s) if num_rows else self._alone_s
        if not token_s:
            return min(most, _UNMEASURED_TOKENS) if num_rows else most
        seconds = max(self.rows_s(num_rows), _UNNOTICED_S) if num_rows else _LONGEST_S
        least = _LEAST_BESIDE_ROWS if num_rows else _LEAST_ALONE
        return min(most, max(least, int(seconds / token_s)))


def _decayed(known: float, new: float) -> float:
    """A step is slow for many reasons, a first one above all, but fast for none: what is much less counts at once."""
    if not known or new < known / 2:
        return new
    return _KEPT * known + (1 - _KEPT) * new
