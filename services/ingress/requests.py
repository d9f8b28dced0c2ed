"""What became of a request: GET /headrace/requests/<rid> and its cancellation, answered from the run log alone."""

import msgspec
from aiohttp import web

from headrace.ingress.dialect import HttpError, describe
from headrace.ingress.endings import end_unrun
from headrace.ingress.front import Front
from headrace.ingress.protocols.openai_encoder import FINISH_REASONS
from headrace.shared import runlog, subjects
from headrace.shared.bus import Bus
from headrace.shared.errors import BusError, Code, Failure, RequestError
from headrace.shared.ids import is_rid
from headrace.shared.packing import num_packed
from headrace.shared.records import CancelRecord
from headrace.shared.runlog import RunLog


class RequestRoutes:
    """Any ingress answers for the requests of all."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def status(self, request: web.Request) -> web.Response:
        """The request's state, usage and end."""
        rid = request.match_info["rid"]
        _, log = await find_run(self._front.bus, rid)
        return web.Response(body=msgspec.json.encode(describe_run(rid, log)), content_type="application/json")

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel; a request that has ended stays as it ended."""
        rid = request.match_info["rid"]
        ing, log = await find_run(self._front.bus, rid)
        state = state_of(log)
        if log.fin is None:
            await self._cancel(ing, rid, log)
            state = "cancelled"
        body = msgspec.json.encode({"id": rid, "state": state})
        return web.Response(status=202, body=body, content_type="application/json")

    async def _cancel(self, ing: str, rid: str, log: RunLog) -> None:
        front = self._front
        try:
            await runlog.cancel(front.bus, ing, rid, CancelRecord(reason="api", by=front.wid))
            if log.lease is None:
                failure = Failure(code=Code.CANCELLED, message="the request was cancelled")
                await end_unrun(front.bus, ing, rid, front.wid, failure)
        except BusError as error:
            raise RequestError(Code.OVERLOADED, "the queue does not answer") from error


async def find_run(bus: Bus, rid: str) -> tuple[str, RunLog]:
    """The ingress that took the request, and its log. Raises HttpError 404, or RequestError when the queue is away."""
    unknown = HttpError(404, "there is no such request, or its log has expired")
    if not is_rid(rid):
        raise unknown
    try:
        record = await bus.last(subjects.RUN, subjects.run("*", rid, "req"))
        if record is None:
            raise unknown
        ing, _, _ = subjects.run_parts(record.subject)
        return ing, await runlog.read_log(bus, ing, rid)
    except BusError as error:
        raise RequestError(Code.OVERLOADED, "the queue does not answer") from error


def state_of(log: RunLog) -> str:
    """queued, running, finished, failed or cancelled."""
    if log.fin is None:
        return "queued" if log.lease is None else "running"
    if log.fin.failure is None:
        return "finished"
    return "cancelled" if log.fin.failure.code is Code.CANCELLED else "failed"


def describe_run(rid: str, log: RunLog) -> dict[str, object]:
    """The run log in the words of the API."""
    fin, lease, req = log.fin, log.lease, log.req
    causes = [end.cause for end in fin.choices] if fin is not None else []
    attempts = fin.attempts if fin is not None else lease.attempt if lease is not None else 0
    return {
        "id": rid,
        "state": state_of(log),
        "model": req.model if req is not None else None,
        "created": req.created_ms // 1000 if req is not None else None,
        "attempts": attempts,
        "usage": _usage(log),
        "finish_reason": FINISH_REASONS.get(causes[0]) if causes else None,
        "error": _error(fin.failure) if fin is not None and fin.failure is not None else None,
    }


def _usage(log: RunLog) -> dict[str, int] | None:
    prompts = [record.prompt for _, record in log.toks] + ([log.fin.prompt] if log.fin is not None else [])
    prompt = next((prompt for prompt in prompts if prompt is not None), None)
    if prompt is None:
        return None
    num_tokens = sum(num_packed(chunk.t) for _, record in log.toks for chunk in record.choices)
    return {
        "prompt_tokens": prompt.prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": prompt.prompt_tokens + num_tokens,
        "cached_tokens": prompt.cached_tokens,
    }


def _error(failure: Failure) -> dict[str, str | None]:
    problem = describe(failure)
    return {"code": failure.code, "message": problem.message, "param": problem.param}
