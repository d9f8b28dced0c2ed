"""All seats: starting, scaling, draining, stopping the workers. Knows neither the queue server nor the registry."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from headrace.shared.errors import ConfigError
from headrace.shared.reports import STAGES
from headrace.up.child import Child, Launcher
from headrace.up.plan import STOP_ORDER, Backoff, check_counts
from headrace.up.seat import OnExit, Seat

log = structlog.get_logger()


class Fleet:
    """The wanted workers of one instance; call it from the loop that owns `group`."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        launch: Launcher,
        on_exit: OnExit,
        *,
        backoff_s: float,
        drain_s: float,
    ) -> None:
        """`backoff_s`: shortest pause before a restart; `drain_s`: longest a process may take to drain."""
        self._group = group
        self._launch = launch
        self._on_exit = on_exit
        self._backoff_s = backoff_s
        self._drain_s = drain_s
        self._seats: dict[Seat, asyncio.Task[None]] = {}

    @property
    def wanted(self) -> dict[str, int]:
        """Workers wanted per stage."""
        return {stage: len(self._taken(stage)) for stage in STAGES}

    @property
    def children(self) -> list[Child]:
        """Running processes, draining ones included."""
        return [seat.child for seat in self._seats if seat.child is not None]

    def scale(self, wanted: Mapping[str, int]) -> None:
        """Start what lacks; drain what is too many, newest first. Raises ConfigError and changes nothing."""
        check_counts(wanted)
        if wanted.get("ingress") == 0:
            raise ConfigError("ingress=0: the last ingress stays, for no order could reach this instance without it")
        for stage, count in wanted.items():
            taken = self._taken(stage)
            log.info("scaling", worker_stage=stage, num_workers=len(taken), num_wanted=count)
            for seat in taken[count:]:
                seat.leave()
            for _ in range(count - len(taken)):
                self._take(stage)

    def drain(self, wid: str) -> None:
        """Drain one worker for good: one worker less is wanted of its stage. Raises ConfigError."""
        for seat in self._seats:
            if seat.child is not None and seat.child.wid == wid:
                if seat.stage == "ingress" and self._taken("ingress") == [seat]:
                    raise ConfigError(f"{wid} is the last ingress: no order could reach this instance without it")
                log.info("draining_worker", worker_stage=seat.stage, worker=wid)
                seat.leave()
                return
        raise ConfigError(f"no worker {wid!r} runs here")

    async def stop(self, now: Callable[[], bool]) -> None:
        """Drain everything, stage group by stage group; once `now()` is true nothing is waited for."""
        for stages in STOP_ORDER:
            tasks = [task for seat, task in self._seats.items() if seat.stage in stages]
            for seat in [seat for seat in self._seats if seat.stage in stages]:
                seat.leave()
            if now():
                self.kill()
            if tasks:
                await asyncio.wait(tasks)

    def kill(self, wid: str | None = None) -> None:
        """End one worker, or all of them, now."""
        for seat in self._seats:
            if wid is None or (seat.child is not None and seat.child.wid == wid):
                seat.kill()

    def _taken(self, stage: str) -> list[Seat]:
        """Seats of a stage that are not being given up, oldest first."""
        return [seat for seat in self._seats if seat.stage == stage and not seat.is_leaving]

    def _take(self, stage: str) -> None:
        seat = Seat(stage, self._launch, Backoff(self._backoff_s), self._on_exit)
        task = self._group.create_task(seat.keep(self._drain_s), name=f"seat {stage}")
        self._seats[seat] = task
        task.add_done_callback(lambda _: self._seats.pop(seat, None))
