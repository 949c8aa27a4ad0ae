"""`iscp invocations serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

PORT = 4080


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.")] = PORT,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="End when the declarations change, to be started anew."),
    ] = False,
) -> None:
    """Drive durable invocations until interrupted; several may run on one database."""
    from iscp_dagster.model.imports import need

    need("serve", "`iscp invocations serve`")
    from iscp_dagster.jobservices import server
    from iscp_dagster.local.stack.environment import with_stack
    from iscp_dagster.serve.web.server import log_to_stderr

    environ = with_stack(os.environ)
    log_to_stderr()
    settings = server.settings_of(environ, host)
    server.serve(settings, host, port, typer.echo, follow=follow)
