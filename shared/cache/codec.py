"""The frame around a block's bytes in the store: a 64-byte header that proves value, place and key belong together.

Header, little-endian: magic, frame version, layout, payload bytes, block index, tokens, shape (4 numbers), the block's
own hash, and last a crc32 over the header before it and the payload. The payload is opaque raw tensor bytes.
"""

import struct
from zlib import crc32

from headrace.shared.cache import Buffer
from headrace.shared.cache.keys import LAYOUT, hash_of

Shape = tuple[int, int, int, int]
"""Layers, KV heads, key width, value width; asymmetric and headless (0) layouts have their own numbers."""

UNSHAPED: Shape = (0, 0, 0, 0)
"""Where the key's fingerprint already implies the shape."""

HEADER_BYTES = 64

_MAGIC = b"HRKV"
_VERSION = 1
_FIELDS = struct.Struct("<4sHHQII4I16s4x")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES


def frame(
    payload: Buffer, key: str, index: int, num_tokens: int, *, shape: Shape = UNSHAPED, layout: int = LAYOUT
) -> tuple[bytes, Buffer]:
    """Header and payload of block `index` of a prompt, to be stored one after the other under `key`."""
    size = memoryview(payload).nbytes
    fields = _FIELDS.pack(_MAGIC, _VERSION, layout, size, index, num_tokens, *shape, hash_of(key))
    return fields + _CRC.pack(crc32(payload, crc32(fields))), payload


def unframe(
    value: Buffer, key: str, index: int, num_tokens: int, *, shape: Shape = UNSHAPED, layout: int = LAYOUT
) -> memoryview | None:
    """The payload as a view into `value`, if that is whole and the very block asked for; None whatever is wrong."""
    view = memoryview(value)
    size = view.nbytes - HEADER_BYTES
    if size < 0:
        return None
    # A header equal to the one we would write needs no field by field reading.
    fields = _FIELDS.pack(_MAGIC, _VERSION, layout, size, index, num_tokens, *shape, hash_of(key))
    payload = view[HEADER_BYTES:]
    if view[: _FIELDS.size] != fields or view[_FIELDS.size : HEADER_BYTES] != _CRC.pack(crc32(payload, crc32(fields))):
        return None
    return payload
