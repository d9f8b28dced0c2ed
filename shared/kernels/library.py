"""The compiled kernels as Python sees them: structures, and one call per step. Raises ModelError if they do not fit."""

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache

from headrace.shared.errors import ModelError
from headrace.shared.kernels.build import library_path
from headrace.shared.kernels.cores import Cores, Line, claim_line


class Linear(Structure):
    """A packed weight; see `csrc/linear.h`."""

    _fields_ = [
        *((name, c_int32) for name in ("rows", "inputs", "bits", "has_half_scales", "num_refined")),
        *((name, c_void_p) for name in ("tiles", "bias", "refined")),
    ]


class Layer(Structure):
    """One layer's weights; a null pointer is a switch that is off."""

    _fields_ = [
        *((name, Linear) for name in ("qkv", "o", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm")),
        *((name, c_void_p) for name in ("q_norm", "k_norm", "rope")),
        *((name, c_int32) for name in ("rope_dims", "window")),
    ]


class Model(Structure):
    """A decoder's sizes, switches and weights."""

    _fields_ = [
        *((name, c_int32) for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        *((name, c_int32) for name in ("vocab", "num_layers", "is_gelu")),
        *((name, c_float) for name in ("eps", "attention_scale", "attention_softcap", "final_softcap", "embed_scale")),
        ("is_tied", c_int32),
        ("layers", POINTER(Layer)),
        ("head", Linear),
        *((name, c_void_p) for name in ("final_norm", "embedding")),
    ]


class Step(Structure):
    """One step's rows, where their keys and values go, and where the logits are wanted."""

    _fields_ = [
        ("num_rows", c_int32),
        ("num_logits", c_int32),
        ("num_spans", c_int32),
        ("block_tokens", c_int32),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("logit_rows", c_void_p),
        ("spans", c_void_p),
        ("tables", c_void_p),
        ("kv", c_void_p),
        ("kv_stride", c_int64),
        ("logits", c_void_p),
    ]


class Draw(Structure):
    """A row that a token is drawn for; `token` is filled in. `top_k` 0 is off, `top_p` 1 and `min_p` 0 are, too."""

    _fields_ = [
        ("logits", c_void_p),
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "noise")),
        *((name, c_int32) for name in ("top_k", "token")),
    ]


MOST_REFINED = 8
"""Groups of an input that can be refined."""
SPAN_BYTES = 16
"""Four int32: first row, number of rows, context, where the sequence's blocks begin in the tables."""


class Threads:
    """The threads and work space of one engine. Not to be used by two threads at once."""

    def __init__(self, cores: Cores) -> None:
        library = _library()
        if library is None:
            raise ModelError("the compiled kernels are not available here")
        self._library = library
        self._line: Line | None = claim_line(cores.page) if cores.page is not None else None
        page = None
        if self._line is not None:
            page = ctypes.addressof((ctypes.c_char * len(self._line.page)).from_buffer(self._line.page))
        self._context = library.headrace_open(cores.num, page, self._line.index if self._line else 0)
        if not self._context:
            raise ModelError("no memory for the threads of the compiled kernels")
        self._end = weakref.finalize(self, library.headrace_close, self._context)
        # At exit the system ends the threads; a step may still be running then.
        self._end.atexit = False

    def forward(self, model: Model, step: Step) -> None:
        """Compute a step; raises MemoryError."""
        if self._library.headrace_forward(self._context, ctypes.byref(model), ctypes.byref(step)):
            raise MemoryError("no memory for a step")

    def close(self) -> None:
        """End the threads; idempotent. Happens by itself when nobody holds this any more."""
        self._end()


def is_available() -> bool:
    """Whether this machine can run the kernels; compiles them if need be."""
    return _library() is not None


def draw(rows: Sequence[Draw], vocab: int) -> list[int]:
    """Draw a token for each row of `vocab` fp32 logits that holds a finite maximum and no NaN; see `csrc/sample.h`.

    Raises MemoryError. Only where the kernels are available.
    """
    library = _library()
    assert library is not None, "who draws has asked whether the kernels are available"
    draws = (Draw * len(rows))(*rows)
    if library.headrace_draw(draws, len(rows), vocab):
        raise MemoryError("no memory for drawing tokens")
    return [row.token for row in draws]


@cache
def _library() -> ctypes.CDLL | None:
    path = library_path()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.headrace_open.restype = c_void_p
    library.headrace_open.argtypes = [c_int, c_void_p, c_int]
    library.headrace_forward.argtypes = [c_void_p, POINTER(Model), POINTER(Step)]
    library.headrace_draw.argtypes = [POINTER(Draw), c_int, c_int]
    library.headrace_close.argtypes = [c_void_p]
    library.headrace_close.restype = None
    sizes = [library.headrace_size(which) for which in range(6)]
    ours = [*(ctypes.sizeof(kind) for kind in (Linear, Layer, Model, Step)), SPAN_BYTES, ctypes.sizeof(Draw)]
    assert sizes == ours, f"structures of {sizes} bytes are described with {ours}"
    return library
