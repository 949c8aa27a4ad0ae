"""`POST /{service}/{handler}` and its forms: a call waits for the output, `/send` does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from asgi_guards.sending import STILL_SECONDS, SharedOutputs
from durable_invocations.ingress.backend import Backend, Catalog
from durable_invocations.ingress.bodies import body
from durable_invocations.ingress.delays import parse_delay
from durable_invocations.ingress.inputs import (
    ID_HEADER,
    build_output_response,
    check_input,
    select_headers,
)
from durable_invocations.ingress.refusals import BAD, BUSY, NOT_FOUND, PLAIN, RefusedError
from durable_invocations.ingress.targets import Target, parse_call, split_path
from durable_invocations.protocol import ids
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import RegisteredHandler, RegisteredService
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import OperationRefusal, Submitted

_LONGEST_KEY = 1_024
_ACCEPTED, _OK = 202, 200


@dataclass(frozen=True, kw_only=True)
class IngressBounds:
    """Limits of one server."""

    body: int = 10 * 1024 * 1024
    """Bytes of an input."""
    waiting: int = 10_000
    """Requests that may wait for an output at the same time."""
    still: float = STILL_SECONDS
    """Seconds that a client may stall while it reads a large output."""


class ResultWaiter:
    """Waits for invocations to end on behalf of requests, within bounds, and sends outputs."""

    def __init__(self, backend: Backend, most: int, still: float) -> None:
        self._backend, self._most, self.count = backend, most, 0
        self.sending = SharedOutputs(still)

    def check(self) -> None:
        """Raises RefusedError (429) if no more requests may wait."""
        if self.count >= self._most:
            message = f"{self.count:,} requests wait for outputs already; use /send, or try again."
            raise RefusedError(BUSY, message, {"Retry-After": "1"})

    async def result(self, request: Request, id_: str) -> Result:
        """How the invocation ended. Raises RefusedError (404) if it is unknown.

        Ends at once when the client disconnects; the invocation continues.
        """
        self.count += 1
        try:
            result = await _wait_unless_gone(request, self._backend.wait_for_result(id_))
        finally:
            self.count -= 1
        if result is None:
            raise make_unknown_error(id_)
        return result


def make_unknown_error(name: str) -> RefusedError:
    """The refusal for an unknown or forgotten invocation."""
    message = f"There is no invocation {name}, or its retention is over."
    return RefusedError(NOT_FOUND, message)


async def _wait_unless_gone(
    request: Request, coroutine: Coroutine[Any, Any, Result | None]
) -> Result | None:
    """The awaited result; None, and canceled, if the client disconnects first."""
    result_task, disconnect_task = (
        asyncio.ensure_future(coroutine),
        asyncio.ensure_future(_wait_disconnected(request)),
    )
    try:
        await asyncio.wait({result_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        return result_task.result() if result_task.done() else None
    finally:
        for task in (result_task, disconnect_task):
            task.cancel()
        await asyncio.gather(result_task, disconnect_task, return_exceptions=True)


async def _wait_disconnected(request: Request) -> None:
    """Returns when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, kw_only=True)
class Invoking:
    """Answers requests to invoke a handler."""

    backend: Backend
    waiting: ResultWaiter
    bounds: IngressBounds
    catalog: Catalog

    async def __call__(self, request: Request) -> Response:
        """The output, or `{"invocationId", "status"}` for `/send`."""
        parts = split_path(get_raw_path(request))
        service = await self._find_service(parts)
        target, send = parse_call(parts, keyed=service.kind.keyed)
        handler = get_handler(service, target.handler)
        if not send:
            self.waiting.check()
        submit = await self._read_submit(request, target, handler, send=send)
        outcome = await self.backend.do(submit)
        if isinstance(outcome, OperationRefusal):
            raise RefusedError(outcome.code, outcome.message)
        return await self._answer_submitted(request, handler, outcome, send=send)

    async def _find_service(self, parts: tuple[str, ...]) -> RegisteredService:
        service = await self.catalog.find_service(*parts)
        if service is None:
            raise RefusedError(
                NOT_FOUND, f"There is no service {parts[0]!r}; register the address that serves it."
            )
        return service

    async def _read_submit(
        self, request: Request, target: Target, handler: RegisteredHandler, *, send: bool
    ) -> Submit:
        delay = _parse_delay(request, send=send)
        content = await body(request, self.bounds.body)
        check_input(handler, request, content)
        return Submit(
            id=ids.format_id(ids.make_id()),
            service=target.service,
            handler=target.handler,
            key=target.key or "",
            argument=content,
            headers=select_headers(request),
            idempotency_key=parse_idempotency_key(request),
            at=round(time.time() * 1_000) + delay if delay else 0,
        )

    async def _answer_submitted(
        self, request: Request, handler: RegisteredHandler, submitted: Submitted, *, send: bool
    ) -> Response:
        if send:
            content = {
                "invocationId": submitted.id,
                "status": "Accepted" if submitted.is_new else "PreviouslyAccepted",
            }
            status = _ACCEPTED if submitted.is_new else _OK
            return JSONResponse(content, status, headers={**PLAIN, ID_HEADER: submitted.id})
        result = submitted.result
        if result is None:
            result = await self.waiting.result(request, submitted.id)
        return build_output_response(handler, submitted.id, result, self.waiting.sending)


def _parse_delay(request: Request, *, send: bool) -> int:
    """Milliseconds until it begins. Raises RefusedError (400) for an invalid delay."""
    params = request.query_params
    if not send:
        if "delay" in params:
            raise RefusedError(BAD, "Only /send can be delayed: a call waits for the output.")
        return 0
    if unknown := sorted(set(params) - {"delay"}):
        raise RefusedError(BAD, f"The parameter {unknown[0]!r} is unknown; /send takes delay.")
    return parse_delay(params["delay"]) if "delay" in params else 0


def get_handler(service: RegisteredService, name: str) -> RegisteredHandler:
    """The handler of that name. Raises RefusedError (404)."""
    handler = service.handler(name)
    if handler is None:
        names = ", ".join(sorted(handler.name for handler in service.handlers)) or "none"
        raise RefusedError(
            NOT_FOUND, f"The service {service.name} has no handler {name!r}; it has: {names}."
        )
    return handler


def get_raw_path(request: Request) -> bytes:
    """The path as it was sent, below the application's root."""
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode())
    return raw.partition(b"?")[0].removeprefix(request.scope.get("root_path", "").encode())


def parse_idempotency_key(request: Request) -> str | None:
    """The key of the request, None if it has none. Raises RefusedError (400)."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    try:
        # UTF-8, as in paths; Starlette reads headers as latin-1.
        key = "".join(values).encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise RefusedError(BAD, "The idempotency-key is not UTF-8 text.") from error
    if len(values) > 1 or not 0 < len(key) <= _LONGEST_KEY:
        raise RefusedError(BAD, f"Give one idempotency-key, of 1 to {_LONGEST_KEY:,} characters.")
    return key
