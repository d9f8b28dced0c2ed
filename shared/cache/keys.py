"""The one function that names KV blocks: content addresses that chain from block to block.

A block found in the store is used unseen, so its name must pin down everything its bytes depend on and who may share
it. Only explicit bytes are hashed; the same prompt gets the same keys in every process and on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from headrace.shared.packing import pack_ids

LAYOUT = 1
"""Version of the bytes inside a block; a change of their order or form is a new number."""

_SCOPE = b"headrace kv scope 1"
_HASH_BYTES = 16
_ID_BYTES = 4
_ROOT = bytes(_HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Scope:
    """What blocks must have in common to be shared."""

    fingerprint: str
    """Checksum of the weights and of all else that shapes the KV; never a model's name."""
    form: str
    """Numeric form that computed the blocks (`bf16`, `w8a8`, …)."""
    attention: str = "causal"
    """Kind of attention mask; block-causal KV never meets causal KV."""
    salt: tuple[str, ...] = ()
    """Whose blocks these are: configured salt, tenant, request's cache salt. The parts are joined with their lengths,
    and the tenant comes from authentication: no value of one part can play another."""
    layout: int = LAYOUT

    def digest(self) -> bytes:
        """32 bytes that differ whenever any field differs."""
        fields = (self.fingerprint, self.form, self.attention, str(self.layout), *self.salt)
        digest = blake2b(_SCOPE, digest_size=32)
        for field in fields:
            data = field.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()


def block_keys(scope: Scope, ids: Sequence[int], block_tokens: int) -> list[str]:
    """Keys of the full blocks of a prompt, in order: `kv:<16 hex of the scope>:<32 hex of the block>`.

    Each block's hash covers the scope, all tokens before it (through its parent's hash) and its own tokens. A last
    block that is not full has no key. Raises OverflowError for ids outside u32.
    """
    scope_digest = scope.digest()
    prefix = f"kv:{scope_digest[:8].hex()}:"
    packed = pack_ids(ids)
    step = block_tokens * _ID_BYTES
    keys, parent = [], _ROOT
    for end in range(step, len(packed) + 1, step):
        parent = blake2b(scope_digest + parent + packed[end - step : end], digest_size=_HASH_BYTES).digest()
        keys.append(prefix + parent.hex())
    return keys


def hash_of(key: str) -> bytes:
    """The 16-byte block hash inside a key; raises ValueError for anything that is not one."""
    block = bytes.fromhex(key[-2 * _HASH_BYTES :])
    if len(block) != _HASH_BYTES or not key.startswith("kv:"):
        raise ValueError(f"not a block key: {key!r}")
    return block
