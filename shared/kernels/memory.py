"""Large tensors in huge pages: looking pages up slows down what is read once per step, above all in a virtual machine.

SmolLM2-135M, one row, one thread, in turn, median ms per step: 7.4 and 6.0 without, 4.7 and 5.8 with.
"""

import ctypes
import mmap
from functools import cache

from torch import Tensor

_HUGE_BYTES = 2 << 20


def prefer_huge_pages(tensor: Tensor) -> Tensor:
    """Ask for huge pages under a tensor that nobody has written to yet; without effect where there are none."""
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    num_bytes = (tensor.data_ptr() + tensor.numel() * tensor.itemsize - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if tensor.device.type == "cpu" and num_bytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), mmap.MADV_HUGEPAGE)
    return tensor


def return_freed_memory() -> None:
    """Give the system what was freed, as after weights were brought into another form; without effect elsewhere."""
    trim = getattr(_libc(), "malloc_trim", None)  # glibc's own
    if trim is not None:
        trim(0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
