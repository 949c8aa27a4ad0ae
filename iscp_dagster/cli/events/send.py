"""`iscp send`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import typer

Run = Callable[[asyncio.Event], Awaitable[None]]


def send() -> None:
    """Deliver events to the declared endpoints until interrupted; `iscp serve` does so, too.

    Several may run: each endpoint is served by one of them at a time.
    """
    from iscp_dagster.api.discovery import load_endpoints
    from iscp_dagster.local.stack.environment import add_stack_variables
    from iscp_dagster.serve.web.server import log_to_stderr
    from iscp_dagster.webhooks.service import SenderService

    environ = add_stack_variables(os.environ)
    endpoints = load_endpoints(environ)
    service = SenderService(environ, endpoints)
    log_to_stderr()
    names = (
        ", ".join(sorted(endpoint.name for endpoint in endpoints))
        or "no endpoint: none is declared"
    )
    typer.echo(f"Delivering to {names}.")
    asyncio.run(_run_until_signalled(service.run))


async def _run_until_signalled(run: Run) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    await run(stop)
