"""Dagster's webserver behind the guard.

Unguarded, it executes GraphQL, including mutations, from a GET or a POST of any content type, and
lets any page open its websocket: any page could start runs with any configuration.
"""

from __future__ import annotations

import os
from typing import Any

from dagster_webserver import app
from dagster_webserver.cli import main as dagster_main
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from asgi_guards.admission import Admission, Guard, parse_names
from iscp_dagster.local.web.read_only import explain_refusal
from iscp_dagster.model.variables import ALLOWED_HOSTS

_NOT_ALLOWED = 405


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's webserver behind the guard; a GET changes nothing."""

    def build_middleware(self) -> list[Middleware]:
        """The guard comes first, before anything is read."""
        hosts = parse_names(os.environ.get(ALLOWED_HOSTS, ""))
        admission = Admission(hosts=hosts, hosts_setting=ALLOWED_HOSTS, links=True)
        return [Middleware(Guard, admission=admission), *super().build_middleware()]

    async def execute_graphql_request(
        self,
        request: Request,
        query: str,
        variables: dict[str, Any] | None,
        operation_name: str | None,
    ) -> JSONResponse:
        """Execute as Dagster does, but mutations and subscriptions only for a POST."""
        if request.method != "POST" and (reason := explain_refusal(query)):
            body = {"data": None, "errors": [{"message": reason}]}
            return JSONResponse(body, status_code=_NOT_ALLOWED, headers={"Allow": "POST"})
        return await super().execute_graphql_request(request, query, variables, operation_name)


def serve() -> None:
    """Run Dagster's command line with the guarded server."""
    setattr(app, "DagsterWebserver", GuardedWebserver)  # noqa: B010 - it exports no such name
    dagster_main()  # type: ignore[no-untyped-call]
