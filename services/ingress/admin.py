"""Operator routes: the worker list, scaling and draining through the supervisor, health and metrics."""

import msgspec
from aiohttp import web

from headrace.ingress.admission import missing_stage
from headrace.ingress.body import parse_object, read_body
from headrace.ingress.dialect import HttpError
from headrace.ingress.front import Front
from headrace.ingress.protocols.fields import as_integer, invalid, missing
from headrace.shared import messages, subjects
from headrace.shared.errors import BusError, Code, MissingError, RequestError
from headrace.shared.ids import is_subject_token
from headrace.shared.reports import ControlReply, DrainRequest, ScaleRequest, WorkerReport
from headrace.shared.telemetry import metrics

_CONTROL_S = 5.0
_MAX_WORKERS = 1024
_MAX_BODY_BYTES = 64 << 10

_reply = msgspec.msgpack.Decoder(ControlReply)


class AdminRoutes:
    """Routes that look at workers, not at requests."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def live(self, _request: web.Request) -> web.Response:
        """The process runs."""
        return _json({"status": "live"})

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether a request would succeed now, by the registry."""
        reason = self._unready_reason()
        names = [model.name for model in self._front.models.current()]
        if reason is not None:
            return _json({"status": "not_ready", "reason": reason, "models": names}, status=503)
        return _json({"status": "ready", "models": names})

    async def metrics(self, _request: web.Request) -> web.Response:
        """This process's metrics."""
        body, content_type = metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def workers(self, _request: web.Request) -> web.Response:
        """Every live process of the instance."""
        return _json([_worker(report) for report in self._front.registry.workers()])

    async def scale(self, request: web.Request) -> web.Response:
        """`{stages: {decode: 2}}`: wanted workers per stage."""
        fields = parse_object(await self._read(request))
        stages = fields.nested("stages")
        if stages is None:
            raise missing("stages")
        wanted = {name: as_integer(count, stages.at(name), 0, _MAX_WORKERS) for name, count in stages.values.items()}
        if not wanted:
            raise invalid("stages", "must name at least one stage")
        return await self._order(subjects.CONTROL_SCALE, ScaleRequest(stages=wanted))

    async def drain(self, request: web.Request) -> web.Response:
        """`{wid: …}`: let one worker finish and stop."""
        wid = parse_object(await self._read(request)).string("wid")
        if wid is None:
            raise missing("wid")
        if not is_subject_token(wid):
            raise invalid("wid", "is not a worker id")
        return await self._order(subjects.CONTROL_DRAIN, DrainRequest(wid=wid))

    async def _read(self, request: web.Request) -> bytes:
        timeout_s = self._front.config.ingress.body_timeout_s
        return await read_body(request, max_bytes=_MAX_BODY_BYTES, timeout_s=timeout_s)

    async def _order(self, subject: str, order: msgspec.Struct) -> web.Response:
        try:
            answer = await self._front.bus.request(subject, messages.encode(order), timeout_s=_CONTROL_S)
            reply = _reply.decode(answer)
        except MissingError:
            raise HttpError(503, "no supervisor is running: this instance is not managed by headrace up") from None
        except BusError as error:
            raise RequestError(Code.OVERLOADED, "the supervisor does not answer") from error
        if reply.status == "refused":
            raise HttpError(409, reply.message, code="refused")
        return _json({"status": reply.status, "message": reply.message})

    def _unready_reason(self) -> str | None:
        if self._front.draining.is_set():
            return "draining"
        stage = missing_stage(lambda name: bool(self._front.registry.ready(name)))
        if stage is not None:
            return f"no {stage} worker is ready"
        return None if self._front.models.current() else "no model is served yet"


def _worker(report: WorkerReport) -> dict[str, object]:
    return {
        "stage": report.stage,
        "wid": report.wid,
        "pid": report.pid,
        "state": report.state,
        "queue": report.queued_tokens,
        "active": report.active,
        "model": ",".join(model.name for model in report.models),
        "revision": ",".join(model.revision for model in report.models),
        "metrics": report.metrics,
    }


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
