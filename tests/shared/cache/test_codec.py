"""The frame refuses everything but exactly the block that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.cache.codec import HEADER_BYTES, unframe
from headrace.shared.cache.codec import frame as parts_of
from headrace.shared.cache.keys import Scope, block_keys

KEY, OTHER_KEY = block_keys(Scope(fingerprint="f", form="bf16"), range(32), 16)
PAYLOAD = bytes(range(256)) * 4


def frame(*args, **fields) -> bytes:
    """A value as the store holds it."""
    return b"".join(parts_of(*args, **fields))


VALUE = frame(PAYLOAD, KEY, 0, 16)


@given(payload=st.binary(max_size=300), index=st.integers(0, 2**32 - 1), num_tokens=st.integers(0, 2**32 - 1))
def test_round_trip(payload, index, num_tokens):
    value = frame(payload, KEY, index, num_tokens)

    assert len(value) == HEADER_BYTES + len(payload)
    assert unframe(value, KEY, index, num_tokens) == payload


def test_a_payload_is_never_copied():
    payload = memoryview(bytearray(PAYLOAD))

    header, framed = parts_of(payload, KEY, 0, 16)
    value = bytearray(header + framed)
    found = unframe(value, KEY, 0, 16)

    assert framed is payload
    assert found == PAYLOAD
    assert found.obj is value


@given(bit=st.integers(0, 8 * len(VALUE) - 1))
def test_any_flipped_bit_is_refused(bit):
    broken = bytearray(VALUE)
    broken[bit // 8] ^= 1 << bit % 8

    assert unframe(bytes(broken), KEY, 0, 16) is None


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, len(VALUE) - 1])
def test_cut_value_is_refused(size):
    assert unframe(VALUE[:size], KEY, 0, 16) is None


def test_longer_value_is_refused():
    assert unframe(VALUE + b"\0", KEY, 0, 16) is None


def test_value_of_another_block_is_refused():
    assert unframe(VALUE, KEY, 0, 16) == PAYLOAD
    assert unframe(VALUE, OTHER_KEY, 0, 16) is None
    assert unframe(VALUE, KEY, 1, 16) is None
    assert unframe(VALUE, KEY, 0, 15) is None
    assert unframe(VALUE, KEY, 0, 16, layout=2) is None
    assert unframe(VALUE, KEY, 0, 16, shape=(30, 3, 64, 64)) is None


def test_asymmetric_and_headless_shapes_are_carried():
    for shape in ((30, 3, 64, 64), (27, 0, 512, 64), (61, 1, 576, 512)):
        value = frame(PAYLOAD, KEY, 0, 16, shape=shape)

        assert unframe(value, KEY, 0, 16, shape=shape) == PAYLOAD
        assert unframe(value, KEY, 0, 16) is None


def test_golden_header():
    """Readers of another version of headrace see these bytes."""
    assert frame(b"abc", KEY, 5, 16).hex() == (
        "48524b5601000100030000000000000005000000100000000000000000000000"
        "0000000000000000ebe0302644aea5a9e5403ee447f033de0000000088ab50b9"
        "616263"
    )
