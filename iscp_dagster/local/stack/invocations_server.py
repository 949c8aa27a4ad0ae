"""The runtime of invocations, `iscp invocations serve`, as a child of the stack."""

from __future__ import annotations

import sys

from iscp_dagster.local.services.service import Service, http_probe
from iscp_dagster.local.services.settings import (
    HOST,
    INVOCATIONS,
    StackSettings,
    child_environment,
    repository,
)

HEALTH = "/restate/health"


def service(settings: StackSettings) -> Service:
    """The server at its port, which also serves the stack's own services, `Iscp` and `Index`."""
    healthy = http_probe(settings.invocations_port, HEALTH)

    async def check(since: float) -> str:
        return "" if await healthy(since) else f"does not answer GET {HEALTH}"

    return Service(
        name=INVOCATIONS,
        command=(
            *(sys.executable, "-m", "iscp_dagster.cli.main", "invocations", "serve", "--follow"),
            *("--host", HOST, "--port", str(settings.invocations_port)),
        ),
        address=settings.invocations,
        environment=child_environment(settings),
        folder=repository(),
        log=settings.logs / f"{INVOCATIONS}.log",
        probe=healthy,
        check=check,
        uses_others=True,
    )
