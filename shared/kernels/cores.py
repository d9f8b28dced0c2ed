"""Which cores an engine may use, and the page on which the engines of one machine tell each other they are busy."""

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_NUM_LINES = 64
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cores:
    """What an engine is given."""

    num: int
    """Most threads it computes with."""
    page: Path | None = None
    """File shared by the engines that share these cores; None: they are this engine's own."""


ONE_CORE = Cores(1)


@dataclass(slots=True)
class Line:
    """This engine's place on the page; held until the process ends."""

    page: mmap.mmap
    index: int
    file: int
    """Descriptor whose lock on the line marks it as taken; the system frees it with the process."""


def claim_line(path: Path) -> Line | None:
    """Take a free line of the page; None if all are taken or the file cannot be had, which only costs the sharing."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(file, _NUM_LINES * _LINE_BYTES)
    except OSError:
        return None
    for index in range(_NUM_LINES):
        try:
            # Locks of one open file description do not hold each other off, nor end with another descriptor's close.
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _write_lock(index))
        except OSError:
            continue
        page = mmap.mmap(file, _NUM_LINES * _LINE_BYTES)
        page[index * _LINE_BYTES : (index + 1) * _LINE_BYTES] = bytes(_LINE_BYTES)
        return Line(page, index, file)
    os.close(file)
    return None


def _write_lock(index: int) -> bytes:
    """`struct flock` of Linux on 64-bit machines: type, whence, start, length, pid (0 for these locks)."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, index * _LINE_BYTES, _LINE_BYTES, 0)
