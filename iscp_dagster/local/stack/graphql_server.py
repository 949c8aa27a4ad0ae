"""The GraphQL server, `iscp serve`, as a child of the stack."""

from __future__ import annotations

import sys

from iscp_dagster.local.services.service import Service, http_probe
from iscp_dagster.local.services.settings import (
    GRAPHQL,
    HOST,
    StackSettings,
    child_environment,
    repository,
)

HEALTH = "/health"


def service(settings: StackSettings) -> Service:
    """The server at its port, which starts although the location's tables cannot be served yet.

    It ends, and is started anew, when the declarations change.
    """
    healthy = http_probe(settings.graphql_port, HEALTH)

    async def check(since: float) -> str:
        return "" if await healthy(since) else f"does not answer GET {HEALTH}"

    return Service(
        name=GRAPHQL,
        command=(
            *(sys.executable, "-m", "iscp_dagster.cli.main", "serve", "--patient", "--follow"),
            *("--host", HOST, "--port", str(settings.graphql_port)),
        ),
        address=settings.graphql,
        environment=child_environment(settings),
        folder=repository(),
        log=settings.logs / f"{GRAPHQL}.log",
        probe=healthy,
        check=check,
        uses_others=True,
    )
