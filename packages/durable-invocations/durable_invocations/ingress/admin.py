"""`/admin/…`: registers addresses, shows invocations with their journals, and ends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from durable_invocations.errors import ConfigError, DurableError
from durable_invocations.ingress import facts
from durable_invocations.ingress.addresses import service_address
from durable_invocations.ingress.backend import Backend
from durable_invocations.ingress.bodies import fields
from durable_invocations.ingress.invoking import unknown
from durable_invocations.ingress.refusals import (
    BAD,
    BAD_GATEWAY,
    NOT_FOUND,
    PLAIN,
    UNPROCESSABLE,
    RefusedError,
)
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.outcomes import Done, Refused
from durable_invocations.runtime.store.views import Chosen

CHANGES: Mapping[str, type[op.Cancel | op.Kill | op.Pause | op.Purge | op.Resume]] = {
    "cancel": op.Cancel,
    "kill": op.Kill,
    "pause": op.Pause,
    "purge": op.Purge,
    "resume": op.Resume,
}
RESERVED = frozenset({"admin", "restate", "services"})
"""Names that no service may have: they begin paths of the server's own."""
MOST = 10_000
_OK, _CREATED = 200, 201
_FILTERS = {"status", "service", "handler", "key", "limit", "before"}


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Admin:
    """Answers administration."""

    backend: Backend
    own: str = ""
    """The id of the deployment of the process's own services, whose names no other may take."""

    def answers(self) -> list[tuple[str, Mapping[str, Answer]]]:
        """The paths below `/admin`, each with what answers its methods."""
        return [
            ("/deployments", {"POST": self.register, "GET": self.deployments}),
            ("/deployments/{id}", {"DELETE": self.unregister}),
            ("/services", {"GET": self.services}),
            ("/invocations", {"GET": self.invocations}),
            ("/invocations/{id}", {"GET": self.invocation}),
            ("/invocations/{id}/{change}", {"PATCH": self.change}),
        ]

    async def register(self, request: Request) -> Response:
        """201 with the deployment; 200 if its address was registered before."""
        asked = await fields(request, uri=str, force=bool)
        if "uri" not in asked:
            raise RefusedError(UNPROCESSABLE, "The field 'uri' is missing.")
        url = service_address(asked["uri"])
        found, services = await self._discovered(url)
        force = asked.get("force", False)
        operation = op.Register(deployment=found, services=services, force=force)
        made = await self.backend.do(operation)
        if isinstance(made, Refused):
            raise RefusedError(made.code, made.message)
        told = await self._told(made.id)
        return _json(told, _CREATED if made.is_new else _OK)

    async def _discovered(self, url: str) -> tuple[Deployment, tuple[Service, ...]]:
        try:
            found, services = await self.backend.discover(url)
        except DurableError as error:
            raise RefusedError(BAD_GATEWAY, str(error)) from error
        names = {each.name for each in services}
        if taken := sorted(RESERVED & names):
            raise RefusedError(
                UNPROCESSABLE,
                f"A service may not be called {taken[0]!r}: paths of the server begin so.",
            )
        if taken := sorted(await self._own_names(url) & names):
            raise RefusedError(
                UNPROCESSABLE,
                f"A service may not be called {taken[0]!r}: the runtime serves one of that name "
                "itself. Rename it.",
            )
        return found, services

    async def _own_names(self, url: str) -> set[str]:
        """The names of the services that the server's process serves, for another address."""
        deployments, services = await self._registered()
        if any((each.id, each.url) == (self.own, url) for each in deployments):
            return set()
        return {each.name for each in services if each.deployment == self.own}

    async def _told(self, id_: str) -> dict[str, Any]:
        deployments, services = await self._registered()
        found = (each for each in deployments if each.id == id_)
        return next((facts.deployment(each, services) for each in found), {"id": id_})

    async def _registered(self) -> tuple[list[Deployment], list[Service]]:
        store = self.backend.store
        deployments: list[Deployment] = await self.backend.read(store.deployments)
        services: dict[str, Service] = await self.backend.read(store.services)
        return deployments, sorted(services.values(), key=lambda each: each.name)

    async def deployments(self, _request: Request) -> Response:
        """The registered addresses."""
        deployments, services = await self._registered()
        return _json({"deployments": [facts.deployment(each, services) for each in deployments]})

    async def unregister(self, request: Request) -> Response:
        """Forget an address; with `force=true` also while invocations need it."""
        force = request.query_params.get("force") == "true"
        operation = op.Unregister(id=request.path_params["id"], force=force)
        return _json({"changed": _done(await self.backend.do(operation)).changed})

    async def services(self, _request: Request) -> Response:
        """The services that can be invoked."""
        deployments, services = await self._registered()
        urls = {each.id: each.url for each in deployments}
        told = [facts.service(each, urls.get(each.deployment)) for each in services]
        return _json({"services": told})

    async def invocations(self, request: Request) -> Response:
        """The latest invocations, by the parameters of the query."""
        return await self.backend.read(self._listed, chosen_by(request.query_params))

    def _listed(self, chosen: Chosen) -> Response:
        # In the thread that reads: thousands would hold up the loop.
        found = self.backend.store.invocations(chosen)
        return _json({"invocations": [facts.invocation(each) for each in found]})

    async def invocation(self, request: Request) -> Response:
        """An invocation with its journal."""
        return await self.backend.read(self._whole, request.path_params["id"])

    def _whole(self, id_: str) -> Response:
        found = self.backend.store.invocation(id_)
        if found is None:
            raise unknown(id_)
        return _json(facts.whole(found, self.backend.store.journal(id_)))

    async def change(self, request: Request) -> Response:
        """Cancel, kill, pause, resume or purge an invocation."""
        operation = CHANGES.get(request.path_params["change"])
        if operation is None:
            raise RefusedError(NOT_FOUND, f"Change an invocation by one of {', '.join(CHANGES)}.")
        wanted: op.Operation[Done | Refused] = operation(id=request.path_params["id"])
        return _json({"changed": _done(await self.backend.do(wanted)).changed})


def chosen_by(parameters: Mapping[str, str]) -> Chosen:
    """The invocations that a query's parameters choose. Raises RefusedError (400)."""
    if unknown_ := sorted(set(parameters) - _FILTERS):
        known = ", ".join(sorted(_FILTERS))
        raise RefusedError(BAD, f"The parameter {unknown_[0]!r} is unknown; known: {known}.")
    chosen = _status(parameters["status"]) if "status" in parameters else Chosen()
    return replace(
        chosen,
        service=parameters.get("service", ""),
        handler=parameters.get("handler", ""),
        key=parameters.get("key"),
        limit=_number("limit", parameters.get("limit", "100"), MOST),
        before=_number("before", parameters["before"]) if "before" in parameters else None,
    )


def _status(text: str) -> Chosen:
    """Those of the status of that name. Raises RefusedError (400)."""
    try:
        return facts.named(text)
    except ConfigError as error:
        raise RefusedError(BAD, str(error)) from error


def _number(name: str, text: str, most: int = 2**53) -> int:
    digits = text.isdecimal() and text.isascii() and len(text) <= len(str(most))
    if not digits or not 0 < int(text) <= most:
        raise RefusedError(BAD, f"{name}={text!r} is no number from 1 to {most:,}.")
    return int(text)


def _done(outcome: Done | Refused) -> Done:
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.code, outcome.message)
    return outcome


def _json(told: Mapping[str, Any], status: int = _OK) -> Response:
    return JSONResponse(told, status, headers=PLAIN)
