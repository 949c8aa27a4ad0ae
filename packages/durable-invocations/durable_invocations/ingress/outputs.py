"""`/restate/…`: outputs of existing invocations, and completion of awakeables."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from durable_invocations.ingress.backend import Backend
from durable_invocations.ingress.bodies import JSON, body, get_media_type, parse_json
from durable_invocations.ingress.inputs import build_output_response
from durable_invocations.ingress.invoking import (
    IngressBounds,
    ResultWaiter,
    get_raw_path,
    make_unknown_error,
)
from durable_invocations.ingress.refusals import (
    BAD,
    NOT_FOUND,
    NOT_READY,
    PLAIN,
    RefusedError,
    make_error_response,
)
from durable_invocations.ingress.targets import split_path
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Result, Value
from durable_invocations.protocol.services import HandlerKind
from durable_invocations.runtime.store.deployments import RegisteredHandler
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import OperationRefusal
from durable_invocations.runtime.store.views import Invocation

_REJECTED = 500
_ACCEPTED = 202
_REASON_BYTES = 64 * 1024
_BY_ID, _IDEMPOTENT, _IDEMPOTENT_WITH_KEY, _WORKFLOW = 1, 3, 4, 2


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Answers requests for the output of an invocation: `attach` waits for it, `output` does not.

    The path gives the invocation's id, its idempotency key, or a workflow's run.
    """

    backend: Backend
    waiting: ResultWaiter

    async def __call__(self, request: Request) -> Response:
        """The output; 470 from `output` while there is none."""
        kind, *names, verb = split_path(get_raw_path(request))
        id_ = await self._resolve_id(kind, tuple(names))
        if verb not in {"attach", "output"}:
            raise RefusedError(NOT_FOUND, f"There is no {verb!r} here; use attach or output.")
        # In turn, so that many requests for one large output do not delay others.
        async with self.waiting.sending.get_turn(id_):
            invocation: Invocation | None = await self.backend.read(
                self.backend.store.invocation, id_
            )
            if invocation is None:
                raise make_unknown_error(id_)
            if invocation.result is not None:
                return await self._build_response(invocation, invocation.result)
        if verb == "output":
            message = f"The invocation {id_} has not ended: it is {invocation.status.label}."
            return make_error_response(NOT_READY, NOT_READY, message)
        self.waiting.check()
        return await self._build_response(invocation, await self.waiting.result(request, id_))

    async def _build_response(self, invocation: Invocation, result: Result) -> Response:
        return build_output_response(
            await self._find_handler(invocation), invocation.id, result, self.waiting.sending
        )

    async def _resolve_id(self, kind: str, names: tuple[str, ...]) -> str:
        if kind == "invocation" and len(names) == _BY_ID:
            return names[0]
        if kind == "workflow" and len(names) == _WORKFLOW:
            return await self._find_run(*names)
        if kind == "invocation" and len(names) in {_IDEMPOTENT, _IDEMPOTENT_WITH_KEY}:
            service, *key, handler, idempotency_key = names
            return await self._find_invocation(service, "".join(key), handler, idempotency_key)
        raise RefusedError(
            NOT_FOUND,
            "Name an invocation by /restate/invocation/{id}/…, its idempotency key by "
            "/restate/invocation/{service}[/{key}]/{handler}/{idempotency key}/…, or a workflow by "
            "/restate/workflow/{name}/{key}/….",
        )

    async def _find_run(self, workflow: str, key: str) -> str:
        services = await self.backend.read(self.backend.store.services)
        handlers = services[workflow].handlers if workflow in services else ()
        for handler in handlers:
            if handler.kind is HandlerKind.WORKFLOW:
                return await self._find_invocation(workflow, key, handler.name, None)
        raise RefusedError(NOT_FOUND, f"There is no workflow {workflow!r}.")

    async def _find_invocation(
        self, service: str, key: str, handler: str, idempotency_key: str | None
    ) -> str:
        arguments = (service, key, handler, idempotency_key)
        invocation_id: str | None = await self.backend.read(self.backend.store.find, *arguments)
        if invocation_id is None:
            raise make_unknown_error("/".join(filter(None, arguments)))
        return invocation_id

    async def _find_handler(self, invocation: Invocation) -> RegisteredHandler | None:
        services = await self.backend.read(self.backend.store.services)
        service = services.get(invocation.service)
        return service.handler(invocation.handler) if service else None


@dataclass(frozen=True, kw_only=True)
class Awakeables:
    """Completes awakeables: `resolve` with the body's bytes, `reject` with its text."""

    backend: Backend
    bounds: IngressBounds

    async def __call__(self, request: Request) -> Response:
        """202; `changed` is false if the awakeable was completed before."""
        parts = split_path(get_raw_path(request))
        if len(parts) != _PARTS or parts[-1] not in {"resolve", "reject"}:
            form = "/restate/awakeables/{id}/resolve, or …/reject"
            raise RefusedError(NOT_FOUND, f"Complete an awakeable by {form}.")
        result = await self._read_result(request, parts[-1])
        outcome = await self.backend.do(CompleteAwakeable(awakeable=parts[1], result=result))
        if isinstance(outcome, OperationRefusal):
            raise RefusedError(outcome.code, outcome.message)
        return JSONResponse({"changed": outcome.changed}, _ACCEPTED, headers=PLAIN)

    async def _read_result(self, request: Request, verb: str) -> Result:
        if verb == "resolve":
            content = await body(request, self.bounds.body)
            if content and get_media_type(request) == JSON:
                # The waiting handler could not read it, and it cannot be completed again.
                parse_json(content)
            return Value(value=content)
        reason = await body(request, _REASON_BYTES)
        try:
            return Failure(code=_REJECTED, message=reason.decode())
        except UnicodeDecodeError as error:
            raise RefusedError(BAD, "The reason is not UTF-8 text.") from error


_PARTS = 3
