"""The engine of a real model: scheduler, runner and KV storage behind the engine contract."""

import os
from collections.abc import Sequence as Run

from headrace.shared.engine import Payload, Pressure, SequenceSpec, StepError, StepOutput
from headrace.shared.engine.runner import Runner
from headrace.shared.engine.sampler import validate
from headrace.shared.engine.scheduler import Scheduler
from headrace.shared.engine.sequence import Sequence
from headrace.shared.engine.storage import KVStorage
from headrace.shared.errors import ConfigError
from headrace.shared.model.load import LoadedModel

_MOST_KV_BYTES = 1 << 30
_SHARE_OF_MEMORY = 0.1


def default_kv_bytes(share: float = 1.0) -> int:
    """Memory for KV when none is configured: `share` of 10 % of the machine's memory or of 1 GiB, whichever is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(share * min(_MOST_KV_BYTES, _SHARE_OF_MEMORY * memory))


class TorchEngine:
    """See the contract in the package; `kv_bytes` is the memory for KV blocks.

    A pool smaller than `max_context` lowers it, so that every admitted sequence fits alone.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        kv_bytes: int,
        block_tokens: int,
        step_tokens: int,
        max_batch: int,
        max_context: int,
    ) -> None:
        self.block_tokens = block_tokens
        self._vocab_size = loaded.config.vocab
        self._block_bytes = KVStorage.block_bytes_for(loaded.config, block_tokens, loaded.kv_dtype, loaded.kv_head_size)
        num_blocks = kv_bytes // self._block_bytes
        if num_blocks < 1:
            raise ConfigError(f"engine.kv_bytes={kv_bytes} does not hold one block of {self._block_bytes} bytes")
        self.max_context = min(max_context, num_blocks * block_tokens)
        self._scheduler = Scheduler(num_blocks, block_tokens=block_tokens, step_tokens=step_tokens, max_batch=max_batch)
        self._storage = KVStorage(
            loaded.config, num_blocks, block_tokens, loaded.kv_dtype, loaded.device, head_size=loaded.kv_head_size
        )
        self._runner = Runner(loaded.decoder, self._storage, block_tokens=block_tokens, device=loaded.device)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of KV per token."""
        return self._block_bytes // self.block_tokens

    def add(self, spec: SequenceSpec, blocks: Run[Payload] = (), first_block: int = 0) -> None:
        """Queue a sequence, writing `blocks` into the pool as soon as it has room for the sequence."""
        sequence = Sequence(spec, block_tokens=self.block_tokens, max_context=self.max_context)
        validate(spec.sampling, self._vocab_size)
        if min(sequence.tokens) < 0 or max(sequence.tokens) >= self._vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {self._vocab_size}")
        for payload in blocks:
            if len(payload) != self._block_bytes:
                raise ValueError(f"a block payload has {len(payload)} bytes, not {self._block_bytes}")
        sequence.bring(blocks, first_block)
        self._scheduler.add(sequence)
        self._scheduler.admit(self._storage.import_block)

    def num_local(self, block_keys: Run[str]) -> int:
        """How many leading blocks of these keys are in this engine already."""
        return self._scheduler.num_local(block_keys)

    def export(self, id: str, first: int, last: int) -> list[Payload]:  # noqa: A002  # the contract's own word
        """Payloads of prompt blocks [first, last); raises ValueError if they are not all computed."""
        return [self._storage.export_block(block) for block in self._scheduler.computed_blocks(id, first, last)]

    def step(self) -> list[StepOutput]:
        """Compute one batch."""
        self._scheduler.admit(self._storage.import_block)
        plan = self._scheduler.plan()
        try:
            sampled = self._runner.run(plan)
        except StepError as error:
            self._scheduler.fail(error.id)
            raise
        return self._scheduler.commit(plan, sampled)

    def release(self, id: str) -> None:  # noqa: A002
        """Forget a sequence."""
        self._scheduler.release(id)
        self._runner.forget(id)

    def has_work(self) -> bool:
        """Whether `step` would compute or report something."""
        return self._scheduler.has_work()

    def next_due(self) -> None:
        """Nothing here waits for a time."""

    def pressure(self) -> Pressure:
        """Current load."""
        return self._scheduler.pressure()

    def drop_cache(self) -> None:
        """Forget all blocks that no sequence holds."""
        self._scheduler.drop_cache()

    def check(self) -> None:
        """Assert the block accounting."""
        self._scheduler.check()
