"""Which layers see only a window, as `layer_types` and its forerunners say it."""

from collections.abc import Sequence

from headrace.shared.errors import ModelError

SLIDING, FULL = "sliding_attention", "full_attention"


def every_nth_full(num_layers: int, n: int) -> list[str]:
    """Layer types where every n-th layer sees everything and all others slide."""
    return [SLIDING if (index + 1) % n else FULL for index in range(num_layers)]


def windows(types: Sequence[str], num_layers: int, window: int | None) -> list[int | None]:
    """Each layer's window; raises ModelError for types that are unknown, too few or too many, or lack a window."""
    unknown = set(types) - {SLIDING, FULL}
    if unknown:
        raise ModelError(f"layer_types holds {sorted(unknown)}; supported are {sorted((SLIDING, FULL))}")
    if len(types) != num_layers:
        raise ModelError(f"layer_types names {len(types)} layers, num_hidden_layers is {num_layers}")
    if SLIDING in types and not window:
        raise ModelError("layer_types holds sliding_attention, but there is no sliding_window")
    return [window if kind == SLIDING else None for kind in types]
