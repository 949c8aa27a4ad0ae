"""`iscp serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

PORT = 4000


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.")] = PORT,
    tokens: Annotated[
        str,
        typer.Option(
            help="A JSON file of tokens and their tenants, or a function as module:name; default: "
            "ISCP_GRAPHQL_TOKENS, else no tokens.",
            show_default=False,
        ),
    ] = "",
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the schema (SDL), and end.")
    ] = False,
    patient: Annotated[
        bool,
        typer.Option("--patient", help="Start although the tables cannot be served yet."),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="End when the declarations change, to be started anew."),
    ] = False,
) -> None:
    """Serve the indexes by GraphQL until interrupted: queries, and subscriptions of changes."""
    from iscp_dagster.model.imports import need

    need("serve", "`iscp serve`")
    from iscp_dagster.local.stack.environment import with_stack
    from iscp_dagster.serve.web import server

    environ = with_stack(os.environ)
    if print_schema:
        typer.echo(server.printed(environ))
        return
    server.log_to_stderr()
    settings = server.settings_of(environ, host, tokens)
    if not patient:
        settings.schemas.current()
        server.sender_of(environ)
    server.serve(settings, host, port, typer.echo, follow=follow)
