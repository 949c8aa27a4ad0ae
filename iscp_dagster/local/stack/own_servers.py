"""The project's own HTTP servers as children of the stack: GraphQL, and the runtime of invocations.

Both end, and are started anew, when the declarations change.
"""

from __future__ import annotations

import sys

from iscp_dagster.local.services.service import Service, http_probe
from iscp_dagster.local.services.settings import (
    GRAPHQL,
    HOST,
    INVOCATIONS,
    StackSettings,
    child_environment,
    declaring_folder,
)


def graphql(settings: StackSettings) -> Service:
    """`iscp serve` at its port; it starts although the location's tables cannot be served yet."""
    return _service(
        settings,
        GRAPHQL,
        command=("serve", "--patient"),
        address=settings.graphql,
        port=settings.graphql_port,
        health="/health",
    )


def invocations(settings: StackSettings) -> Service:
    """`iscp invocations serve`, which also serves the stack's own services, `Iscp` and `Index`."""
    return _service(
        settings,
        INVOCATIONS,
        command=("invocations", "serve"),
        address=settings.invocations,
        port=settings.invocations_port,
        health="/restate/health",
    )


def _service(
    settings: StackSettings,
    name: str,
    *,
    command: tuple[str, ...],
    address: str,
    port: int,
    health: str,
) -> Service:
    healthy = http_probe(port, health)

    async def check(since: float) -> str:
        return "" if await healthy(since) else f"does not answer GET {health}"

    return Service(
        name=name,
        command=(
            *(sys.executable, "-m", "iscp_dagster.cli.main", *command, "--follow"),
            *("--host", HOST, "--port", str(port)),
        ),
        address=address,
        environment=child_environment(settings),
        folder=declaring_folder(),
        log=settings.logs / f"{name}.log",
        probe=healthy,
        check=check,
        uses_others=True,
    )
