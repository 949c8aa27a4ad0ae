"""`iscp invocations serve`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated

import typer

from durable_invocations.runtime.retries import RetryPolicy
from iscp_dagster.model.clock import DURATION, parse_duration

PORT = 4080


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.")] = PORT,
    no_own_services: Annotated[
        bool,
        typer.Option(
            "--no-own-services", help="Leave out Iscp and Index, with which handlers drive jobs."
        ),
    ] = False,
    retry_initial: Annotated[
        float,
        typer.Option(
            envvar="ISCP_INVOCATIONS_RETRY_INITIAL",
            show_envvar=False,
            help="Seconds before the first retry.",
        ),
    ] = RetryPolicy.initial,
    retry_factor: Annotated[
        float,
        typer.Option(
            envvar="ISCP_INVOCATIONS_RETRY_FACTOR",
            show_envvar=False,
            help="Growth of that delay with each failure in a row.",
        ),
    ] = RetryPolicy.factor,
    retry_cap: Annotated[
        float,
        typer.Option(
            envvar="ISCP_INVOCATIONS_RETRY_CAP",
            show_envvar=False,
            help="The most seconds between two attempts.",
        ),
    ] = RetryPolicy.cap,
    retry_attempts: Annotated[
        int,
        typer.Option(
            envvar="ISCP_INVOCATIONS_RETRY_ATTEMPTS",
            show_envvar=False,
            min=0,
            help="Failures in a row before it is paused; 0: never.",
        ),
    ] = RetryPolicy.attempts or 0,
    keep: Annotated[
        str,
        typer.Option(
            envvar="ISCP_INVOCATIONS_KEEP",
            show_envvar=False,
            help=f"How long ended invocations are kept: {DURATION}.",
        ),
    ] = "1d",
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Exit when the declarations change, to be restarted."),
    ] = False,
) -> None:
    """Drive durable invocations until interrupted; several may run on one database."""
    from iscp_dagster.model.imports import require_extra

    require_extra("serve", "`iscp invocations serve`")
    from durable_invocations.runtime.settings import RuntimeSettings
    from iscp_dagster.jobservices import runtime_server
    from iscp_dagster.jobservices.app import build_services_app
    from iscp_dagster.local.stack.environment import add_stack_variables
    from iscp_dagster.serve.web.server import log_to_stderr

    environ = add_stack_variables(os.environ)
    log_to_stderr()
    policy = RetryPolicy(
        initial=retry_initial,
        factor=retry_factor,
        cap=retry_cap,
        attempts=retry_attempts or None,
    )
    settings = runtime_server.build_settings(
        environ,
        host,
        runtime=RuntimeSettings(policy=policy),
        retention=_parse_retention(keep),
        services=None if no_own_services else build_services_app(environ),
    )
    runtime_server.serve(settings, host, port, typer.echo, follow=follow)


def _parse_retention(text: str) -> timedelta:
    retention = parse_duration(text)
    if retention is None or not retention:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write {DURATION}.", param_hint="--keep"
        )
    return retention
