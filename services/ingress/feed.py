"""The records of one request, in order and without gaps: live ones while nothing is lost, the run log where it is.

A live record is taken only if its `prev` is the last `tok` sequence taken here. Anything else (a gap, a full buffer, a
reconnect, silence) makes the feed read the log, which is the truth. Offsets of tokens are checked on top of sequences.
"""

import asyncio
import math
from collections import deque

import msgspec
import structlog

from headrace.shared import subjects
from headrace.shared.bus import Bus, Record
from headrace.shared.errors import BusError, Code, Failure
from headrace.shared.packing import num_packed
from headrace.shared.records import FinRecord, TokRecord
from headrace.shared.runlog import decode_record
from headrace.shared.telemetry import metrics

Item = TokRecord | FinRecord

MAX_BUFFERED = 128
"""Records kept for a consumer that is slower than its stream; the rest stays in the log until it catches up."""
_MAX_QUIET = 4
"""Silence checks of one request become rarer up to this multiple."""

log = structlog.get_logger()


class Feed:
    """One consumer's view of `out.<ing>.<rid>.*`. Use from one event loop; one task waits."""

    def __init__(self, ing: str, rid: str, silence_s: float) -> None:
        self._ing = ing
        self.rid = rid
        self.is_leased = False
        """Whether somebody took the right to write this log."""
        self.is_ended = False
        """Whether the terminal record was taken."""
        self.is_broken = False
        """Whether that record was made up here, because the log cannot be followed: a worker may still run."""
        self.check_at = math.inf
        """When the log is to be read, loop time."""
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._quiet_s = silence_s
        self._items: deque[Item] = deque()
        self._is_behind = False
        self._held: list[Record] | None = None
        self._last_tok = 0
        self._next_offset: dict[int, int] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Start to watch for silence: the request was published."""
        self.check_at = self._loop.time() + self._silence_s

    def pop(self) -> Item | None:
        """The next item if one is here."""
        return self._items.popleft() if self._items else None

    async def wait(self, until: float) -> None:
        """Wait for news, at most until the loop time `until`; may return early."""
        if self._items or self.check_at <= self._loop.time():
            return
        self._waiter = self._loop.create_future()
        # One timer serves many waits: records move deadlines back all the time, so an old timer is let fire early
        # rather than replaced for each record.
        if self._timer is None or self._timer.when() > until:
            self._cancel_timer()
            self._timer = self._loop.call_at(until, self._on_timer)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def offer(self, record: Record) -> None:
        """Take one live record."""
        if self._held is not None:
            if len(self._held) < MAX_BUFFERED:
                self._held.append(record)
            return
        self._take_live(record)
        if self._items or self._is_behind:
            self._wake()

    def recheck(self) -> None:
        """Read the log soon: live records may have been lost."""
        self.check_at = 0.0
        self._wake()

    async def replay(self, bus: Bus) -> None:
        """Take what the log holds beyond the last `tok` taken. Failures are logged and tried again later."""
        self._held = []
        was_behind, num_before = self._is_behind, len(self._items)
        is_more = False
        try:
            is_more = await self._read_log(bus)
            self._quiet_s = self._silence_s if len(self._items) > num_before else self._longer()
        except BusError as error:
            log.warning("log_unreadable", request=self.rid, reason=str(error))
        finally:
            held, self._held = self._held, None
            self.check_at = 0.0 if is_more else self._loop.time() + self._quiet_s
            for record in held:
                self._take_live(record)
        if was_behind or len(self._items) > num_before:
            metrics.GAP_REPLAYS_TOTAL.inc()

    def close(self) -> None:
        """Release the timer; idempotent."""
        self._cancel_timer()

    async def _read_log(self, bus: Bus) -> bool:
        """Take records until the buffer is full; whether the log holds more."""
        after = self._last_tok
        while not self.is_ended:
            subject = subjects.run(self._ing, self.rid, ">")
            records = await bus.read(subjects.RUN, subject, after=after, limit=MAX_BUFFERED)
            for record in records:
                if len(self._items) >= MAX_BUFFERED:
                    self._is_behind = True
                    return True
                if record.reason is None:
                    self._take(record, is_logged=True)
                after = record.seq
            if len(records) < MAX_BUFFERED:
                break
        self._is_behind = False
        return False

    def _take_live(self, record: Record) -> None:
        if self._take(record, is_logged=False):
            self._quiet_s = self._silence_s
            self.check_at = self._loop.time() + self._silence_s
        elif self._is_behind:
            self.check_at = 0.0

    def _take(self, record: Record, *, is_logged: bool) -> bool:
        """Take a record if it is the next one; whether it was."""
        kind = record.subject.rpartition(".")[2]
        if self.is_ended or kind not in {"tok", "fin", "lease"}:
            return False
        if kind == "lease":
            self.is_leased = True
            return True
        try:
            value = decode_record(kind, record.data)
        except (msgspec.DecodeError, RecursionError) as error:
            return self._take_unreadable(record, error, is_logged=is_logged)
        if isinstance(value, TokRecord):
            return self._take_tok(record, value, is_logged=is_logged)
        assert isinstance(value, FinRecord)
        return self._take_fin(value, is_logged=is_logged)

    def _take_unreadable(self, record: Record, error: Exception, *, is_logged: bool) -> bool:
        if not is_logged:
            self._is_behind = True
            return False
        # The error's own words may quote the record.
        log.warning("run_record_unreadable", request=self.rid, seq=record.seq, error=type(error).__name__)
        self._break("the run log holds a record that cannot be read")
        return True

    def _take_tok(self, record: Record, value: TokRecord, *, is_logged: bool) -> bool:
        if record.seq <= self._last_tok:
            return False
        if not is_logged and (
            self._is_behind
            or len(self._items) >= MAX_BUFFERED
            or (record.prev is not None and record.prev != self._last_tok)
        ):
            self._is_behind = True
            return False
        return self._accept(record, value, is_logged=is_logged)

    def _accept(self, record: Record, value: TokRecord, *, is_logged: bool) -> bool:
        shifts = [chunk.o - self._next_offset.get(chunk.i, 0) for chunk in value.choices]
        if any(shift < 0 for shift in shifts):
            self._last_tok = record.seq
            return False
        if any(shifts):
            if not is_logged:
                self._is_behind = True
                return False
            log.error("run_log_gap", request=self.rid, seq=record.seq, shifts=shifts)
            self._break("the run log has a gap")
            return True
        for chunk in value.choices:
            self._next_offset[chunk.i] = chunk.o + num_packed(chunk.t)
        self._last_tok = record.seq
        self._items.append(value)
        return True

    def _take_fin(self, value: FinRecord, *, is_logged: bool) -> bool:
        is_whole = all(end.n == self._next_offset.get(end.i, 0) for end in value.choices)
        if not is_logged and (self._is_behind or not is_whole):
            self._is_behind = True
            return False
        if not is_whole and value.failure is None:
            log.error("run_log_short", request=self.rid)
            self._break("the run log lacks tokens")
            return True
        self.is_ended = True
        self._items.append(value)
        return True

    def _break(self, reason: str) -> None:
        self.is_ended = self.is_broken = True
        self._items.append(FinRecord(failure=Failure(code=Code.INTERNAL, message=reason)))

    def _longer(self) -> float:
        return min(self._quiet_s * 2, self._silence_s * _MAX_QUIET)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
