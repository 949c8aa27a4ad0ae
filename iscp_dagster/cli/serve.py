"""`iscp serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

PORT = 4000


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs tokens.")
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
        bool, typer.Option("--print-schema", help="Print the schema (SDL), and exit.")
    ] = False,
    patient: Annotated[
        bool,
        typer.Option("--patient", help="Start even if the tables cannot be served yet."),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Exit when the declarations change, to be restarted."),
    ] = False,
) -> None:
    """Serve the indexes over GraphQL until interrupted: queries, and subscriptions of changes."""
    from iscp_dagster.model.imports import require_extra

    require_extra("serve", "`iscp serve`")
    from iscp_dagster.local.stack.environment import add_stack_variables
    from iscp_dagster.serve.web import server

    environ = add_stack_variables(os.environ)
    if print_schema:
        typer.echo(server.render_schema(environ))
        return
    server.log_to_stderr()
    settings = server.build_settings(environ, host, tokens)
    if not patient:
        settings.schemas.get_schema()
        server.check_sender(environ)
    server.serve(settings, host, port, typer.echo, follow=follow)
