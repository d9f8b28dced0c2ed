"""The generation routes: body → request → records → frames or one reply. One handler serves every dialect."""

import math
import secrets
import time
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
from aiohttp import web

from headrace.ingress.account import Account
from headrace.ingress.admission import admit
from headrace.ingress.body import parse_object, read_body
from headrace.ingress.exchange import Exchange
from headrace.ingress.front import Front
from headrace.ingress.identity import caller_of, identity_of
from headrace.ingress.protocols import Adapter, Head, Parsed, Terms
from headrace.ingress.relay import Relay
from headrace.ingress.stream import EventStream, read_timeout
from headrace.shared import messages
from headrace.shared.messages import Accepted, Deadlines
from headrace.shared.records import ReqRecord
from headrace.shared.reports import ModelReport

_ANSWER_MARGIN_S = 5.0
"""A plain answer must leave this long before its client gives up."""


class Generation:
    """One dialect's route."""

    def __init__(self, front: Front, adapter: Adapter) -> None:
        self._front = front
        self._adapter = adapter

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Serve one call. Raises RequestError or HttpError while the status line is still open."""
        identity = identity_of(request)
        identity.is_generation = True
        limits = self._front.config.limits
        with Account(identity.rid, caller_of(request)) as account:
            timeout_s = self._front.config.ingress.body_timeout_s
            body = await read_body(request, max_bytes=limits.max_body_bytes, timeout_s=timeout_s)
            terms = Terms(seed=secrets.randbits(63), max_output_tokens=limits.max_output_tokens)
            parsed = self._adapter.parse(parse_object(body), terms)
            identity.ignored = parsed.ignored
            model = admit(self._front.door(parsed.model), parsed.model)
            with self._front.gate.slot():
                return await self._serve(request, _Call(identity.rid, body, parsed, model), account)

    async def _serve(self, request: web.Request, call: "_Call", account: Account) -> web.StreamResponse:
        front = self._front
        created_ms = time.time_ns() // 1_000_000
        accepted = self._accepted(request, call, created_ms)
        head = Head(
            rid=call.rid,
            created=created_ms // 1000,
            model=call.parsed.model,
            fingerprint=fingerprint(call.model.revision),
        )
        encoder = self._adapter.encoder(head, call.parsed.render)
        async with Exchange(front.bus, front.inbox, front.cleanups, front.wid, accepted) as exchange:
            await exchange.submit(_req_record(accepted, call))
            account.accept()
            relay = Relay(exchange, encoder, account, self._adapter.prompt_param)
            if call.parsed.stream:
                return await relay.stream(EventStream(request, front.config.ingress))
            return await relay.plain()

    def _accepted(self, request: web.Request, call: "_Call", created_ms: int) -> Accepted:
        timeouts = self._front.config.timeouts
        patience_s = None if call.parsed.stream else read_timeout(request)
        total_s = min(timeouts.total_s, max(1.0, patience_s - _ANSWER_MARGIN_S) if patience_s else math.inf)
        parsed = call.parsed
        return Accepted(
            request=messages.Request(
                rid=call.rid,
                ing=self._front.wid,
                model=parsed.model,
                revision=call.model.revision,
                deadlines=Deadlines(
                    queue_s=timeouts.queue_s,
                    first_token_s=timeouts.first_token_s,
                    stall_s=timeouts.stall_s,
                    total_s=total_s,
                ),
                created_ms=created_ms,
                protocol=self._adapter.protocol,
                max_new=parsed.max_new,
                sampling=parsed.sampling,
                cache_salt=parsed.cache_salt,
                session=parsed.session,
                return_token_ids=parsed.return_token_ids,
                script=parsed.script,
            ),
            prompt=parsed.prompt,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One admitted call."""

    rid: str
    body: bytes
    parsed: Parsed
    model: ModelReport


def _req_record(accepted: Accepted, call: _Call) -> ReqRecord:
    request = accepted.request
    return ReqRecord(
        tenant=request.tenant,
        protocol=request.protocol,
        model=request.model,
        revision=request.revision,
        created_ms=request.created_ms,
        total_s=request.deadlines.total_s,
        render=msgspec.Raw(call.parsed.render),
        body_hash=blake2b(call.body, digest_size=16).digest(),
    )


def fingerprint(revision: str) -> str:
    """`system_fingerprint`: the same for all replies of one revision."""
    return f"fp_{blake2b(revision.encode(), digest_size=6).hexdigest()}"
