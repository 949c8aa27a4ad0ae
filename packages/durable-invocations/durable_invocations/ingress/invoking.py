"""`POST /{service}/{handler}` and its forms: a call waits for the output, `/send` does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from asgi_guards.sending import STILL_SECONDS, Sending
from durable_invocations.ingress.backend import Backend, Catalog
from durable_invocations.ingress.bodies import body
from durable_invocations.ingress.delays import milliseconds
from durable_invocations.ingress.inputs import ID_HEADER, answer, check_input, kept_headers
from durable_invocations.ingress.refusals import BAD, BUSY, NOT_FOUND, PLAIN, RefusedError
from durable_invocations.ingress.targets import Target, called, segments
from durable_invocations.protocol import ids
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Handler, Service
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import Refused, Submitted

_LONGEST_KEY = 1_024
_ACCEPTED, _OK = 202, 200


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one server takes on."""

    body: int = 10 * 1024 * 1024
    """Bytes of an input."""
    waiting: int = 10_000
    """Requests that wait for an output at the same time."""
    still: float = STILL_SECONDS
    """Seconds for which a client may take nothing of a large output."""


class Waiting:
    """Waits for the ends of invocations on behalf of requests, within bounds, and sends outputs."""

    def __init__(self, backend: Backend, most: int, still: float) -> None:
        self._backend, self._most, self.count = backend, most, 0
        self.sending = Sending(still)

    def check(self) -> None:
        """Raises RefusedError (429) if no more requests may wait."""
        if self.count >= self._most:
            message = f"{self.count:,} requests wait for outputs already; use /send, or ask again."
            raise RefusedError(BUSY, message, {"Retry-After": "1"})

    async def result(self, request: Request, id_: str) -> Result:
        """How the invocation ended. Raises RefusedError (404) if it is unknown.

        Ends at once when the client is gone; the invocation goes on.
        """
        self.count += 1
        try:
            found = await _unless_gone(request, self._backend.ended(id_))
        finally:
            self.count -= 1
        if found is None:
            raise unknown(id_)
        return found


def unknown(what: str) -> RefusedError:
    """The refusal of an invocation that is not there, or no longer."""
    message = f"There is no invocation {what}, or its retention is over."
    return RefusedError(NOT_FOUND, message)


async def _unless_gone(
    request: Request, wanted: Coroutine[Any, Any, Result | None]
) -> Result | None:
    """What is awaited; a client that is gone cancels it, and gets nothing."""
    waited, gone = asyncio.ensure_future(wanted), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({waited, gone}, return_when=asyncio.FIRST_COMPLETED)
        return waited.result() if waited.done() else None
    finally:
        for each in (waited, gone):
            each.cancel()
        await asyncio.gather(waited, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, kw_only=True)
class Invoking:
    """Answers requests to invoke a handler."""

    backend: Backend
    waiting: Waiting
    bounds: Bounds
    catalog: Catalog

    async def __call__(self, request: Request) -> Response:
        """The output, or `{"invocationId", "status"}` for `/send`."""
        parts = segments(raw_path(request))
        service = await self._service(parts)
        target, send = called(parts, keyed=service.kind.keyed)
        handler = handler_of(service, target.handler)
        if not send:
            self.waiting.check()
        submit = await self._submission(request, target, handler, send=send)
        made = await self.backend.do(submit)
        if isinstance(made, Refused):
            raise RefusedError(made.code, made.message)
        return await self._answered(request, handler, made, send=send)

    async def _service(self, parts: tuple[str, ...]) -> Service:
        found = await self.catalog.service(*parts)
        if found is None:
            raise RefusedError(
                NOT_FOUND, f"There is no service {parts[0]!r}; register the address that serves it."
            )
        return found

    async def _submission(
        self, request: Request, target: Target, handler: Handler, *, send: bool
    ) -> Submit:
        later = _delay(request, send=send)
        content = await body(request, self.bounds.body)
        check_input(handler, request, content)
        return Submit(
            id=ids.shown(ids.new_id()),
            service=target.service,
            handler=target.handler,
            key=target.key or "",
            argument=content,
            headers=kept_headers(request),
            idempotency_key=idempotency_key(request),
            at=round(time.time() * 1_000) + later if later else 0,
        )

    async def _answered(
        self, request: Request, handler: Handler, made: Submitted, *, send: bool
    ) -> Response:
        if send:
            told = {
                "invocationId": made.id,
                "status": "Accepted" if made.is_new else "PreviouslyAccepted",
            }
            status = _ACCEPTED if made.is_new else _OK
            return JSONResponse(told, status, headers={**PLAIN, ID_HEADER: made.id})
        result = made.result
        if result is None:
            result = await self.waiting.result(request, made.id)
        return answer(handler, made.id, result, self.waiting.sending)


def _delay(request: Request, *, send: bool) -> int:
    """Milliseconds until it begins. Raises RefusedError (400) rather than begin at once."""
    asked = request.query_params
    if not send:
        if "delay" in asked:
            raise RefusedError(BAD, "Only /send can be delayed: a call waits for the output.")
        return 0
    if unknown := sorted(set(asked) - {"delay"}):
        raise RefusedError(BAD, f"The parameter {unknown[0]!r} is unknown; /send takes delay.")
    return milliseconds(asked["delay"]) if "delay" in asked else 0


def handler_of(service: Service, name: str) -> Handler:
    """The handler of that name. Raises RefusedError (404)."""
    found = service.handler(name)
    if found is None:
        known = ", ".join(sorted(each.name for each in service.handlers)) or "none"
        raise RefusedError(
            NOT_FOUND, f"The service {service.name} has no handler {name!r}; it has: {known}."
        )
    return found


def raw_path(request: Request) -> bytes:
    """The path as it was sent, below the application's own."""
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode())
    return raw.partition(b"?")[0].removeprefix(request.scope.get("root_path", "").encode())


def idempotency_key(request: Request) -> str | None:
    """The key of the request, None if it has none. Raises RefusedError (400)."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    try:
        # As paths name it; Starlette reads headers as latin-1.
        key = "".join(given).encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise RefusedError(BAD, "The idempotency-key is no UTF-8 text.") from error
    if len(given) > 1 or not 0 < len(key) <= _LONGEST_KEY:
        raise RefusedError(BAD, f"Give one idempotency-key, of 1 to {_LONGEST_KEY:,} characters.")
    return key
