"""The project's own HTTP servers as children of the stack: GraphQL, and the runtime of invocations.

Both exit, and are restarted, when the declarations change.
"""

from __future__ import annotations

import sys

from iscp_dagster.local.services.service import Service, make_http_probe
from iscp_dagster.local.services.settings import (
    GRAPHQL,
    HOST,
    INVOCATIONS,
    StackSettings,
    build_child_environment,
    get_module_folder,
)


def build_graphql_service(settings: StackSettings) -> Service:
    """`iscp serve` at its port; it starts even if the location's tables cannot be served yet."""
    return _build_service(
        settings,
        GRAPHQL,
        command=("serve", "--patient"),
        address=settings.graphql,
        port=settings.graphql_port,
        health="/health",
    )


def build_invocations_service(settings: StackSettings) -> Service:
    """`iscp invocations serve`, which also serves the stack's own services, `Iscp` and `Index`."""
    return _build_service(
        settings,
        INVOCATIONS,
        command=("invocations", "serve"),
        address=settings.invocations,
        port=settings.invocations_port,
        health="/restate/health",
    )


def _build_service(
    settings: StackSettings,
    name: str,
    *,
    command: tuple[str, ...],
    address: str,
    port: int,
    health: str,
) -> Service:
    probe = make_http_probe(port, health)

    async def check(since: float) -> str:
        return "" if await probe(since) else f"does not answer GET {health}"

    return Service(
        name=name,
        command=(
            *(sys.executable, "-m", "iscp_dagster.cli.main", *command, "--follow"),
            *("--host", HOST, "--port", str(port)),
        ),
        address=address,
        environment=build_child_environment(settings),
        folder=get_module_folder(),
        log=settings.logs / f"{name}.log",
        probe=probe,
        check=check,
        stops_first=True,
    )
