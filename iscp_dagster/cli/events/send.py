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
    from iscp_dagster.api.discovery import declared_endpoints
    from iscp_dagster.local.stack.environment import with_stack
    from iscp_dagster.serve.web.server import log_to_stderr
    from iscp_dagster.webhooks.service import SenderService

    environ = with_stack(os.environ)
    endpoints = declared_endpoints(environ)
    service = SenderService(environ, endpoints)
    log_to_stderr()
    names = ", ".join(sorted(each.name for each in endpoints)) or "no endpoint: none is declared"
    typer.echo(f"Delivering to {names}.")
    asyncio.run(_until_signalled(service.run))


async def _until_signalled(run: Run) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    await run(stop)
