"""What the routes of one ingress process share: its queue, its view of the workers, and the requests inside."""

import asyncio
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.ingress.admission import Door, Gate, missing_stage
from headrace.ingress.exchange import Cleanups
from headrace.ingress.inbox import Inbox
from headrace.ingress.models import ServedModels
from headrace.shared.bus import Bus
from headrace.shared.config import Config
from headrace.shared.registry import Registry


class Process(Protocol):
    """The part of a stage process that the front door needs."""

    config: Config
    bus: Bus
    wid: str
    registry: Registry
    draining: asyncio.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Collaborators of all routes."""

    config: Config
    bus: Bus
    wid: str
    registry: Registry
    draining: asyncio.Event
    models: ServedModels
    inbox: Inbox
    gate: Gate
    cleanups: Cleanups

    @classmethod
    def of(cls, process: Process) -> Self:
        """The front door of a stage process."""
        models = ServedModels(process.registry, process.config)
        process.registry.on_change(lambda _wid, _report: models.note())
        return cls(
            config=process.config,
            bus=process.bus,
            wid=process.wid,
            registry=process.registry,
            draining=process.draining,
            models=models,
            inbox=Inbox(process.bus, process.wid, process.config.ingress.silence_s),
            gate=Gate(),
            cleanups=Cleanups(),
        )

    def door(self, model: str) -> Door:
        """The state that admission decides on."""
        return Door(
            is_draining=self.draining.is_set(),
            num_active=self.gate.num_active,
            max_concurrent=self.config.limits.max_concurrent,
            missing_stage=missing_stage(self._is_there),
            is_known=self.models.is_known(model),
            report=self.models.find(model),
        )

    def _is_there(self, stage: str) -> bool:
        return self.registry.seen_within(stage, self.config.ingress.absence_grace_s)
