"""What a block costs on its way from the store, as measured, against computing it again. Numbers only."""

_KEPT = 0.8
"""Weight of what was known before, against one more measurement."""
_FIRST_LATENCY_S = 0.002
_FIRST_RATE = 500e6
"""Bytes per second assumed before the first large fetch."""
_LARGE_BYTES = 1 << 20
"""From here on the time of a fetch says something of the rate, below it of the latency."""
_UNMEASURED_PROMPT_RATE = 500.0
"""Prompt tokens per second assumed of an engine that has computed none yet."""


class FetchPrice:
    """Latency and rate of fetches; decaying averages."""

    def __init__(self) -> None:
        self._latency_s = _FIRST_LATENCY_S
        self._byte_s = 1 / _FIRST_RATE

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return 1 / self._byte_s

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from one fetch, one that found nothing included."""
        if num_bytes < _LARGE_BYTES:
            self._latency_s += (1 - _KEPT) * (seconds - self._latency_s)
        else:
            byte_s = max(seconds - self._latency_s, seconds / 2) / num_bytes
            self._byte_s += (1 - _KEPT) * (byte_s - self._byte_s)

    def seconds(self, num_bytes: int) -> float:
        """Expected time of a fetch."""
        return self._latency_s + num_bytes * self._byte_s

    def is_worth_it(self, num_tokens: int, token_bytes: int, prompt_rate: float) -> bool:
        """Whether fetching so many tokens is faster than computing them at `prompt_rate` (0: not measured)."""
        computed_s = num_tokens / (prompt_rate or _UNMEASURED_PROMPT_RATE)
        return self.seconds(num_tokens * token_bytes) < computed_s
