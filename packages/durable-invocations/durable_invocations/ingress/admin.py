"""`/admin/…`: registers addresses, shows invocations with their journals, and changes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from durable_invocations.errors import ConfigError, DurableError
from durable_invocations.ingress import facts
from durable_invocations.ingress.addresses import parse_service_address
from durable_invocations.ingress.backend import Backend
from durable_invocations.ingress.bodies import fields
from durable_invocations.ingress.invoking import make_unknown_error
from durable_invocations.ingress.refusals import (
    BAD,
    BAD_GATEWAY,
    NOT_FOUND,
    PLAIN,
    UNPROCESSABLE,
    RefusedError,
)
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import InvocationFilter

CHANGES: Mapping[str, type[op.Cancel | op.Kill | op.Pause | op.Purge | op.Resume]] = {
    "cancel": op.Cancel,
    "kill": op.Kill,
    "pause": op.Pause,
    "purge": op.Purge,
    "resume": op.Resume,
}
RESERVED = frozenset({"admin", "restate", "services"})
"""Names that no service may have: the server's own paths begin with them."""
MOST = 10_000
_OK, _CREATED = 200, 201
_FILTERS = {"status", "service", "handler", "key", "limit", "before"}


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Admin:
    """Answers administrative requests."""

    backend: Backend
    own: str = ""
    """The id of this process's own deployment; other services may not take its names."""

    def list_routes(self) -> list[tuple[str, Mapping[str, Answer]]]:
        """The paths below `/admin`, each with the handlers of its methods."""
        return [
            ("/deployments", {"POST": self.register, "GET": self.deployments}),
            ("/deployments/{id}", {"DELETE": self.unregister}),
            ("/services", {"GET": self.services}),
            ("/invocations", {"GET": self.invocations}),
            ("/invocations/{id}", {"GET": self.invocation}),
            ("/invocations/{id}/{change}", {"PATCH": self.change_invocation}),
        ]

    async def register(self, request: Request) -> Response:
        """201 with the deployment; 200 if its address was registered before."""
        requested = await fields(request, uri=str, force=bool)
        if "uri" not in requested:
            raise RefusedError(UNPROCESSABLE, "The field 'uri' is missing.")
        url = parse_service_address(requested["uri"])
        deployment, services = await self._discover_services(url)
        force = requested.get("force", False)
        operation = op.Register(deployment=deployment, services=services, force=force)
        outcome = await self.backend.do(operation)
        if isinstance(outcome, OperationRefusal):
            raise RefusedError(outcome.code, outcome.message)
        description = await self._describe_deployment(outcome.id)
        return _make_json_response(description, _CREATED if outcome.is_new else _OK)

    async def _discover_services(
        self, url: str
    ) -> tuple[Deployment, tuple[RegisteredService, ...]]:
        try:
            deployment, services = await self.backend.discover(url)
        except DurableError as error:
            raise RefusedError(BAD_GATEWAY, str(error)) from error
        names = {service.name for service in services}
        if conflicts := sorted(RESERVED & names):
            raise RefusedError(
                UNPROCESSABLE,
                f"A service may not be called {conflicts[0]!r}: the server's paths begin with it.",
            )
        if conflicts := sorted(await self._read_own_names(url) & names):
            raise RefusedError(
                UNPROCESSABLE,
                f"A service may not be called {conflicts[0]!r}: the runtime itself serves "
                "one of that name. Rename it.",
            )
        return deployment, services

    async def _read_own_names(self, url: str) -> set[str]:
        """The names of this process's own services; empty if `url` is its own address."""
        deployments, services = await self._read_registered()
        if any((deployment.id, deployment.url) == (self.own, url) for deployment in deployments):
            return set()
        return {service.name for service in services if service.deployment == self.own}

    async def _describe_deployment(self, id_: str) -> dict[str, Any]:
        deployments, services = await self._read_registered()
        matches = (deployment for deployment in deployments if deployment.id == id_)
        return next(
            (facts.describe_deployment(deployment, services) for deployment in matches), {"id": id_}
        )

    async def _read_registered(self) -> tuple[list[Deployment], list[RegisteredService]]:
        store = self.backend.store
        deployments: list[Deployment] = await self.backend.read(store.deployments)
        services: dict[str, RegisteredService] = await self.backend.read(store.services)
        return deployments, sorted(services.values(), key=lambda service: service.name)

    async def deployments(self, _request: Request) -> Response:
        """The registered addresses."""
        deployments, services = await self._read_registered()
        return _make_json_response(
            {
                "deployments": [
                    facts.describe_deployment(deployment, services) for deployment in deployments
                ]
            }
        )

    async def unregister(self, request: Request) -> Response:
        """Forget an address; with `force=true` also while invocations need it."""
        force = request.query_params.get("force") == "true"
        operation = op.Unregister(id=request.path_params["id"], force=force)
        return _make_json_response(
            {"changed": _check_done(await self.backend.do(operation)).changed}
        )

    async def services(self, _request: Request) -> Response:
        """The services that can be invoked."""
        deployments, services = await self._read_registered()
        urls = {deployment.id: deployment.url for deployment in deployments}
        descriptions = [
            facts.describe_service(service, urls.get(service.deployment)) for service in services
        ]
        return _make_json_response({"services": descriptions})

    async def invocations(self, request: Request) -> Response:
        """The latest invocations that match the query's parameters."""
        return await self.backend.read(self._read_invocations, parse_filter(request.query_params))

    def _read_invocations(self, filters: InvocationFilter) -> Response:
        # In the reader's thread: thousands would block the loop.
        invocations = self.backend.store.invocations(filters)
        return _make_json_response(
            {"invocations": [facts.describe_invocation(invocation) for invocation in invocations]}
        )

    async def invocation(self, request: Request) -> Response:
        """An invocation with its journal."""
        return await self.backend.read(self._read_invocation, request.path_params["id"])

    def _read_invocation(self, id_: str) -> Response:
        invocation = self.backend.store.invocation(id_)
        if invocation is None:
            raise make_unknown_error(id_)
        return _make_json_response(
            facts.describe_with_journal(invocation, self.backend.store.read_journal(id_))
        )

    async def change_invocation(self, request: Request) -> Response:
        """Cancel, kill, pause, resume or purge an invocation."""
        change_type = CHANGES.get(request.path_params["change"])
        if change_type is None:
            raise RefusedError(NOT_FOUND, f"Change an invocation by one of {', '.join(CHANGES)}.")
        change: op.StoreOperation[ChangeOutcome | OperationRefusal] = change_type(
            id=request.path_params["id"]
        )
        return _make_json_response({"changed": _check_done(await self.backend.do(change)).changed})


def parse_filter(parameters: Mapping[str, str]) -> InvocationFilter:
    """The filter of a query's parameters. Raises RefusedError (400)."""
    if unknown := sorted(set(parameters) - _FILTERS):
        allowed = ", ".join(sorted(_FILTERS))
        raise RefusedError(BAD, f"The parameter {unknown[0]!r} is unknown; known: {allowed}.")
    filters = _parse_status(parameters["status"]) if "status" in parameters else InvocationFilter()
    return replace(
        filters,
        service=parameters.get("service", ""),
        handler=parameters.get("handler", ""),
        key=parameters.get("key"),
        limit=_parse_number("limit", parameters.get("limit", "100"), MOST),
        before=_parse_number("before", parameters["before"]) if "before" in parameters else None,
    )


def _parse_status(text: str) -> InvocationFilter:
    """The filter for a status. Raises RefusedError (400)."""
    try:
        return facts.parse_status(text)
    except ConfigError as error:
        raise RefusedError(BAD, str(error)) from error


def _parse_number(name: str, text: str, most: int = 2**53) -> int:
    digits = text.isdecimal() and text.isascii() and len(text) <= len(str(most))
    if not digits or not 0 < int(text) <= most:
        raise RefusedError(BAD, f"{name}={text!r} is not a number from 1 to {most:,}.")
    return int(text)


def _check_done(outcome: ChangeOutcome | OperationRefusal) -> ChangeOutcome:
    if isinstance(outcome, OperationRefusal):
        raise RefusedError(outcome.code, outcome.message)
    return outcome


def _make_json_response(content: Mapping[str, Any], status: int = _OK) -> Response:
    return JSONResponse(content, status, headers=PLAIN)
