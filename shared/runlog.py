"""Reading and writing the run log of one request: lease, append, finish.

All writes are fenced: a lease is taken by compare-and-set on the `lease` subject, and its stream sequence must still
be the newest for every `tok` and `fin` that its holder writes. Whoever loses it gets FencedError and stops silently.
"""

import secrets
from dataclasses import dataclass, field

import msgspec
import structlog

from headrace.shared import subjects
from headrace.shared.bus import Bus, Expect, Record
from headrace.shared.errors import FencedError
from headrace.shared.messages import encode
from headrace.shared.packing import num_packed
from headrace.shared.records import (
    CancelRecord,
    ChoiceEnd,
    FinRecord,
    LeaseRecord,
    OwnRecord,
    PromptUsage,
    ReqRecord,
    TokRecord,
)

logger = structlog.get_logger()

_TYPES: dict[str, type[msgspec.Struct]] = {
    "req": ReqRecord,
    "lease": LeaseRecord,
    "tok": TokRecord,
    "fin": FinRecord,
    "cancel": CancelRecord,
    "own": OwnRecord,
}
_DECODERS = {name: msgspec.msgpack.Decoder(kind) for name, kind in _TYPES.items()}


@dataclass(slots=True)
class Lease:
    """The right to write one run log, as its holder knows it."""

    ing: str
    rid: str
    seq: int
    attempt: int
    num_appends: int = 0

    @property
    def expect(self) -> Expect:
        """The condition that fences every write."""
        return Expect(self.seq, subjects.run(self.ing, self.rid, "lease"))


@dataclass(slots=True)
class RunLog:
    """The log of one request as read back."""

    req: ReqRecord | None = None
    lease: LeaseRecord | None = None
    lease_seq: int = 0
    toks: list[tuple[int, TokRecord]] = field(default_factory=list)
    """(stream sequence, record) in order."""
    fin: FinRecord | None = None
    cancel: CancelRecord | None = None
    own: OwnRecord | None = None
    last_seq: int = 0

    @property
    def prompt(self) -> PromptUsage | None:
        """Prompt usage, fixed in the first record of tokens."""
        return next((record.prompt for _, record in self.toks if record.prompt is not None), None)

    @property
    def has_progressed(self) -> bool:
        """Whether the newest lease has appended anything."""
        return bool(self.toks) and self.toks[-1][0] > self.lease_seq

    def add(self, record: Record) -> None:
        """Fold one stored record in.

        A kind this version does not know is passed over. One that cannot be read is, too, but not unnoticed: a lease
        can still be taken over, and missing tokens show as a gap.
        """
        self.last_seq = max(self.last_seq, record.seq)
        kind = record.subject.rsplit(".", 1)[-1]
        if kind not in _DECODERS:
            return
        if kind == "lease":
            self.lease, self.lease_seq = None, record.seq
        try:
            value = decode_record(kind, record.data)
        except msgspec.DecodeError as error:
            logger.warning("record_unreadable", subject=record.subject, seq=record.seq, error=type(error).__name__)
            return
        if isinstance(value, TokRecord):
            self.toks.append((record.seq, value))
        elif isinstance(value, LeaseRecord):
            self.lease, self.lease_seq = value, record.seq
        elif isinstance(value, ReqRecord):
            self.req = value
        elif isinstance(value, FinRecord):
            self.fin = value
        elif isinstance(value, CancelRecord):
            self.cancel = value
        elif isinstance(value, OwnRecord):
            self.own = value


def decode_record(kind: str, data: bytes) -> msgspec.Struct:
    """Decode one record by the last token of its subject; raises msgspec.DecodeError, also on an unknown kind."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise msgspec.DecodeError(f"unknown record kind {kind!r}")
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


async def read_log(bus: Bus, ing: str, rid: str, *, after: int = 0) -> RunLog:
    """Read all records of a request with sequence > `after`."""
    log = RunLog(last_seq=after)
    page = 500
    while True:
        records = await bus.read(subjects.RUN, subjects.run(ing, rid, ">"), after=log.last_seq, limit=page)
        for record in records:
            if record.reason is None:
                log.add(record)
        if len(records) < page:
            return log


def summary(run: RunLog) -> tuple[ChoiceEnd, ...]:
    """What a log holds of each choice, for a terminal record written by somebody who never ran it."""
    nums: dict[int, int] = {}
    for _, record in run.toks:
        for chunk in record.choices:
            nums[chunk.i] = chunk.o + num_packed(chunk.t)
    return tuple(ChoiceEnd(i=i, n=n, cause="error") for i, n in sorted(nums.items()))


async def take_lease(
    bus: Bus, ing: str, rid: str, wid: str, *, attempt: int, item_seq: int = 0, expected_seq: int = 0
) -> Lease:
    """Take the lease over the one at `expected_seq` (0: the first); raises FencedError if that is not the newest."""
    record = LeaseRecord(wid=wid, attempt=attempt, nonce=secrets.token_bytes(8), item_seq=item_seq)
    subject = subjects.run(ing, rid, "lease")
    seq = await bus.publish(subject, encode(record), expect=Expect(expected_seq))
    return Lease(ing=ing, rid=rid, seq=seq, attempt=attempt)


async def release(bus: Bus, lease: Lease, wid: str) -> None:
    """Give the lease up on purpose, before handing the request over. Raises FencedError when it is lost already."""
    # The release hides from `history` that this lease has added tokens, which cleared what happened before.
    attempt = 1 if lease.num_appends else lease.attempt
    record = LeaseRecord(wid=wid, attempt=attempt, nonce=secrets.token_bytes(8), released=True)
    await bus.publish(subjects.run(lease.ing, lease.rid, "lease"), encode(record), expect=Expect(lease.seq))


async def append(bus: Bus, lease: Lease, record: TokRecord, *, deadline_s: float = 30.0) -> int:
    """Append tokens under the lease; returns the record's sequence. Raises FencedError when the lease is lost.

    At most one append per lease may be outstanding.
    """
    msg_id = f"{lease.rid}:{lease.seq}:{lease.num_appends}"
    subject = subjects.run(lease.ing, lease.rid, "tok")
    seq = await bus.publish(subject, encode(record), msg_id=msg_id, expect=lease.expect, deadline_s=deadline_s)
    lease.num_appends += 1
    return seq


async def finish(bus: Bus, lease: Lease, record: FinRecord, *, deadline_s: float = 30.0) -> bool:
    """Write the terminal record under the lease; False when the lease is lost."""
    subject = subjects.run(lease.ing, lease.rid, "fin")
    msg_id = f"{lease.rid}:{lease.seq}:fin"
    try:
        await bus.publish(subject, encode(record), msg_id=msg_id, expect=lease.expect, deadline_s=deadline_s)
    except FencedError:
        return False
    return True


async def end(bus: Bus, ing: str, rid: str, wid: str, fin: FinRecord, *, over: int = 0) -> bool:
    """End a request that no worker runs: lease (over the one at sequence `over`), then `fin`.

    False when somebody else holds a newer lease or has ended it already.
    """
    try:
        lease = await take_lease(bus, ing, rid, wid, attempt=fin.attempts, expected_seq=over)
    except FencedError:
        return False
    if await bus.last(subjects.RUN, subjects.run(ing, rid, "fin")) is not None:
        return False
    return await finish(bus, lease, fin)


async def cancel(bus: Bus, ing: str, rid: str, record: CancelRecord) -> None:
    """Write the tombstone that every stage drops the request on."""
    await bus.publish(subjects.run(ing, rid, "cancel"), encode(record), msg_id=f"{rid}:cancel")
