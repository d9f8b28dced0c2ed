"""Block keys: stable across processes, different for everything that shapes the bytes or the right to see them."""

import time
from dataclasses import replace
from hashlib import blake2b
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.shared.cache.keys import Scope, block_keys, hash_of

SCOPE = Scope(fingerprint="a" * 64, form="bf16", salt=("", "acme", ""))


def test_golden_keys():
    """These literals may change only together with the scope's version: stored blocks hang on them."""
    assert block_keys(SCOPE, [1, 2, 3, 4, 5, 70000, 7, 8, 9], 4) == [
        "kv:f4eac8a4814a44e1:de64fa07e80461360a66763b3b53d6a6",
        "kv:f4eac8a4814a44e1:ad508f24871f9ce0c0e9b7dccf5488f0",
    ]


def test_hash_is_the_documented_one():
    fields = [b"a" * 64, b"bf16", b"causal", b"1", b"", b"acme", b""]
    scope = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    digest = blake2b(b"headrace kv scope 1" + scope, digest_size=32).digest()
    first = blake2b(digest + bytes(16) + pack("<4I", 1, 2, 3, 4), digest_size=16).digest()
    second = blake2b(digest + first + pack("<4I", 5, 6, 7, 8), digest_size=16).digest()

    assert block_keys(SCOPE, range(1, 9), 4) == [f"kv:{digest[:8].hex()}:{block.hex()}" for block in (first, second)]


@pytest.mark.parametrize(
    "other",
    [
        replace(SCOPE, fingerprint="b" * 64),
        replace(SCOPE, form="w8a8"),
        replace(SCOPE, attention="block"),
        replace(SCOPE, layout=2),
        replace(SCOPE, salt=("", "zeta", "")),
        replace(SCOPE, salt=("acme", "", "")),
        replace(SCOPE, salt=("", "", "acme")),
        replace(SCOPE, salt=("", "acme", "1")),
        replace(SCOPE, salt=("", "ac", "me")),
        replace(SCOPE, salt=("", "acme")),
    ],
)
def test_any_other_scope_shares_nothing(other):
    ours, theirs = block_keys(SCOPE, range(32), 16), block_keys(other, range(32), 16)

    assert not set(ours) & set(theirs)
    assert ours[0].split(":")[1] != theirs[0].split(":")[1]


def test_same_tenant_shares():
    """The counterpart of the test above: separation is not an accident of keys that never match."""
    same = Scope(fingerprint="a" * 64, form="bf16", salt=("", "acme", ""))

    assert block_keys(SCOPE, range(32), 16) == block_keys(same, list(range(32)), 16)


def test_one_salt_cannot_play_another():
    """A request's own salt that spells a tenant's name, or the join of two parts, stays separate."""
    splits = [("x", "yz", ""), ("xy", "z", ""), ("", "xyz", ""), ("", "x", "yz"), ("\x00", "x", ""), ("", "\x00x", "")]

    keys = {block_keys(replace(SCOPE, salt=salt), range(16), 16)[0] for salt in splits}

    assert len(keys) == len(splits)


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=60),
    block_tokens=st.integers(1, 20),
    change=st.integers(0, 59),
)
def test_keys_follow_the_prefix(ids, block_tokens, change):
    keys = block_keys(SCOPE, ids, block_tokens)
    assert len(keys) == len(ids) // block_tokens
    assert block_keys(SCOPE, ids[: len(keys) * block_tokens], block_tokens) == keys
    if change < len(ids):
        changed = list(ids)
        changed[change] ^= 1
        others = block_keys(SCOPE, changed, block_tokens)
        same = [ours == theirs for ours, theirs in zip(keys, others, strict=True)]
        assert same == [place < change // block_tokens for place in range(len(keys))]


def test_equal_tokens_at_another_place_have_another_key():
    first, second = block_keys(SCOPE, [7] * 32, 16)

    assert first != second


def test_ids_outside_u32_are_refused():
    for bad in (-1, 2**32):
        with pytest.raises(OverflowError):
            block_keys(SCOPE, [bad] * 16, 16)


def test_hash_of_reads_the_block_hash_back():
    key = block_keys(SCOPE, range(16), 16)[0]

    assert hash_of(key).hex() == key.rsplit(":", 1)[1]
    for bad in ("", "kv:", "kv:0:zz", "xx:0:" + "0" * 32):
        with pytest.raises(ValueError, match=r"block key|hexadecimal"):
            hash_of(bad)


def test_a_long_prompt_costs_less_than_a_millisecond_per_hundred_blocks():
    ids = list(range(2000))

    def once() -> float:
        began = time.perf_counter()
        block_keys(SCOPE, ids, 16)
        return time.perf_counter() - began

    assert min(once() for _ in range(20)) < 0.00125
