"""Token ids on the wire: packed little-endian u32."""

import sys
from array import array
from collections.abc import Iterable

_WIDTH = 4
assert array("I").itemsize == _WIDTH


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids; raises OverflowError outside 0..2**32-1."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Unpack token ids; raises ValueError if the length is no multiple of four."""
    packed = array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def num_packed(data: bytes) -> int:
    """Count the ids in packed form."""
    return len(data) // _WIDTH
