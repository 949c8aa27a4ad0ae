"""`/restate/…`: outputs of invocations that there are, and awakeables that others complete."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from durable_invocations.ingress.backend import Backend
from durable_invocations.ingress.bodies import JSON, body, media_type, parsed
from durable_invocations.ingress.inputs import answer
from durable_invocations.ingress.invoking import Bounds, Waiting, raw_path, unknown
from durable_invocations.ingress.refusals import (
    BAD,
    NOT_FOUND,
    NOT_READY,
    PLAIN,
    RefusedError,
    told,
)
from durable_invocations.ingress.targets import segments
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Result, Value
from durable_invocations.protocol.services import HandlerKind
from durable_invocations.runtime.store.deployments import Handler
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import Refused
from durable_invocations.runtime.store.views import Invocation

_REJECTED = 500
_ACCEPTED = 202
_REASON_BYTES = 64 * 1024
_BY_ID, _IDEMPOTENT, _IDEMPOTENT_WITH_KEY, _WORKFLOW = 1, 3, 4, 2


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Answers requests for the output of an invocation: `attach` waits for it, `output` does not.

    The invocation is named by its id, by its idempotency key, or as a workflow's run.
    """

    backend: Backend
    waiting: Waiting

    async def __call__(self, request: Request) -> Response:
        """The output; 470 from `output` while there is none."""
        what, *named, verb = segments(raw_path(request))
        id_ = await self._found(what, tuple(named))
        if verb not in {"attach", "output"}:
            raise RefusedError(NOT_FOUND, f"There is no {verb!r} here; use attach or output.")
        # One after the other, so that many who ask for one large output hold up nobody else.
        async with self.waiting.sending.turn(id_):
            found: Invocation | None = await self.backend.read(self.backend.store.invocation, id_)
            if found is None:
                raise unknown(id_)
            if found.result is not None:
                return await self._answer(found, found.result)
        if verb == "output":
            message = f"The invocation {id_} has not ended: it is {found.status.label}."
            return told(NOT_READY, NOT_READY, message)
        self.waiting.check()
        return await self._answer(found, await self.waiting.result(request, id_))

    async def _answer(self, found: Invocation, result: Result) -> Response:
        return answer(await self._handler(found), found.id, result, self.waiting.sending)

    async def _found(self, what: str, named: tuple[str, ...]) -> str:
        if what == "invocation" and len(named) == _BY_ID:
            return named[0]
        if what == "workflow" and len(named) == _WORKFLOW:
            return await self._run_of(*named)
        if what == "invocation" and len(named) in {_IDEMPOTENT, _IDEMPOTENT_WITH_KEY}:
            service, *key, handler, idempotency_key = named
            return await self._find(service, "".join(key), handler, idempotency_key)
        raise RefusedError(
            NOT_FOUND,
            "Name an invocation by /restate/invocation/{id}/…, its idempotency key by "
            "/restate/invocation/{service}[/{key}]/{handler}/{idempotency key}/…, or a workflow by "
            "/restate/workflow/{name}/{key}/….",
        )

    async def _run_of(self, workflow: str, key: str) -> str:
        services = await self.backend.read(self.backend.store.services)
        handlers = services[workflow].handlers if workflow in services else ()
        for each in handlers:
            if each.kind is HandlerKind.WORKFLOW:
                return await self._find(workflow, key, each.name, None)
        raise RefusedError(NOT_FOUND, f"There is no workflow {workflow!r}.")

    async def _find(self, service: str, key: str, handler: str, idempotency_key: str | None) -> str:
        arguments = (service, key, handler, idempotency_key)
        found: str | None = await self.backend.read(self.backend.store.find, *arguments)
        if found is None:
            raise unknown("/".join(filter(None, arguments)))
        return found

    async def _handler(self, found: Invocation) -> Handler | None:
        services = await self.backend.read(self.backend.store.services)
        service = services.get(found.service)
        return service.handler(found.handler) if service else None


@dataclass(frozen=True, kw_only=True)
class Awakeables:
    """Completes awakeables: `resolve` with the body's bytes, `reject` with its text."""

    backend: Backend
    bounds: Bounds

    async def __call__(self, request: Request) -> Response:
        """202; `changed` is false if the awakeable was completed before."""
        parts = segments(raw_path(request))
        if len(parts) != _PARTS or parts[-1] not in {"resolve", "reject"}:
            form = "/restate/awakeables/{id}/resolve, or …/reject"
            raise RefusedError(NOT_FOUND, f"Complete an awakeable by {form}.")
        result = await self._result(request, parts[-1])
        done = await self.backend.do(CompleteAwakeable(awakeable=parts[1], result=result))
        if isinstance(done, Refused):
            raise RefusedError(done.code, done.message)
        return JSONResponse({"changed": done.changed}, _ACCEPTED, headers=PLAIN)

    async def _result(self, request: Request, verb: str) -> Result:
        if verb == "resolve":
            content = await body(request, self.bounds.body)
            if content and media_type(request) == JSON:
                # Who waits for it could not read it, and it cannot be completed again.
                parsed(content)
            return Value(value=content)
        reason = await body(request, _REASON_BYTES)
        try:
            return Failure(code=_REJECTED, message=reason.decode())
        except UnicodeDecodeError as error:
            raise RefusedError(BAD, "The reason is no UTF-8 text.") from error


_PARTS = 3
