"""`iscp up`, `down`, `status` and `test`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

_CLICKHOUSE_HELP = "Port of ClickHouse's HTTP interface (8123, or a free one)."
_SPARK_HELP = "Port of the Spark Connect server (15002, or a free one)."
_DAGSTER_HELP = "Port of the Dagster web interface (3000, or a free one)."
NOT_UP = 3


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the stack is ready.")
    ] = False,
    service: Annotated[
        list[str] | None,
        typer.Option(help="Start only this service; repeatable.", show_default=False),
    ] = None,
    clickhouse_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=_CLICKHOUSE_HELP, show_default=False)
    ] = None,
    spark_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=_SPARK_HELP, show_default=False)
    ] = None,
    dagster_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=_DAGSTER_HELP, show_default=False)
    ] = None,
) -> None:
    """Start ClickHouse, Spark and Dagster, and keep them running until interrupted."""
    from iscp_dagster.stack import control
    from iscp_dagster.stack.settings import CLICKHOUSE, DAGSTER, SPARK

    ports = {CLICKHOUSE: clickhouse_port, SPARK: spark_port, DAGSTER: dagster_port}
    raise typer.Exit(control.up(ports, service or [], detach=detach))


def down() -> None:
    """Stop the stack; what it holds stays for the next up."""
    from iscp_dagster.stack import control

    control.down()


def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each service: its state, address, process and log. Exit code 3 when nothing is up."""
    from iscp_dagster.stack import control

    raise typer.Exit(0 if control.status(as_json=as_json) else NOT_UP)


tests = typer.Typer(add_completion=False)


@tests.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def run_tests(ctx: typer.Context) -> None:
    """Run the project's tests; everything after `test` goes to pytest."""
    from iscp_dagster.stack.settings import repository

    os.chdir(repository())
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *ctx.args])  # noqa: S606
