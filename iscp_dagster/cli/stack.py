"""`iscp up`, `down`, `env`, `status`, `logs` and `test`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from iscp_dagster.model.errors import ConfigError, IscpError, UnavailableError

_CLICKHOUSE_HELP = "Port of ClickHouse's HTTP interface (default: 8123, or a free one)."
_SPARK_HELP = "Port of the Spark Connect server (default: 15002, or a free one)."
_DAGSTER_HELP = "Port of the Dagster web interface (default: 3000, or a free one)."
_GRAPHQL_HELP = "Port of the GraphQL server (default: 4000, or a free one)."
_INVOCATIONS_HELP = "Port of the runtime of invocations (default: 4080, or a free one)."
NOT_UP = 3
UNWELL = 1


def _check_services(services: list[str] | None) -> list[str] | None:
    """The requested services; an unknown name is a usage error."""
    from iscp_dagster.local.services.settings import SERVICES

    for name in services or []:
        if name not in SERVICES:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(SERVICES)}.")
    return services


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the stack is ready.")
    ] = False,
    service: Annotated[
        list[str] | None,
        typer.Option(
            help="Start only this service: clickhouse, spark, dagster, graphql or invocations; "
            "repeatable.",
            show_default=False,
            callback=_check_services,
        ),
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
    graphql_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=_GRAPHQL_HELP, show_default=False)
    ] = None,
    invocations_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=_INVOCATIONS_HELP, show_default=False)
    ] = None,
) -> None:
    """Start ClickHouse, Spark, Dagster, GraphQL and the runtime of invocations; keep them running
    until interrupted.
    """
    from iscp_dagster.model.imports import require_extra

    require_extra("local", "`iscp up`")
    from iscp_dagster.local.services.settings import (
        CLICKHOUSE,
        DAGSTER,
        GRAPHQL,
        INVOCATIONS,
        SPARK,
    )
    from iscp_dagster.local.stack import control

    ports = {
        CLICKHOUSE: clickhouse_port,
        SPARK: spark_port,
        DAGSTER: dagster_port,
        GRAPHQL: graphql_port,
        INVOCATIONS: invocations_port,
    }
    raise typer.Exit(
        control.start_stack(ports, service or [], detach=detach, paths=_list_table_paths)
    )


def _list_table_paths() -> list[str | None]:
    """The paths of the declared tables; empty without AWS settings, since then none is in S3."""
    if not any(name.startswith("AWS_") for name in os.environ):
        return []
    from iscp_dagster.api.discovery import load_tables

    try:
        return [source.path for source in load_tables(os.environ)]
    except IscpError:
        # Dagster will report what is wrong with the location.
        return []


def down() -> None:
    """Stop the stack; its data stays for the next `iscp up`."""
    from iscp_dagster.local.stack import control

    control.stop_stack()


def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit code 1 when a service is unwell or a job is in error."),
    ] = False,
    show_password: Annotated[
        bool, typer.Option("--show-password", help="Print ClickHouse's password and Spark's token.")
    ] = False,
) -> None:
    """Show each service: its condition, address, process, log. Exit code 3 when nothing is up."""
    from iscp_dagster.local.stack import control

    if show_password:
        raise typer.Exit(0 if control.show_secrets(as_json=as_json) else NOT_UP)
    if not control.print_status(as_json=as_json):
        raise typer.Exit(NOT_UP)
    problems = control.find_problems() if check else []
    for problem in problems:
        typer.echo(f"iscp: {problem}", err=True)
    raise typer.Exit(UNWELL if problems else 0)


def show_logs(
    service: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG",
            help="Logs to show, such as `spark` or `supervisor`; default: all.",
            show_default=False,
        ),
    ] = None,
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines per log.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")
    ] = False,
) -> None:
    """Show the latest lines of the services' logs."""
    from iscp_dagster.cli.parts.sanitizing import escape_control_chars
    from iscp_dagster.local.services.settings import get_home
    from iscp_dagster.local.stack import tails

    def print_log_line(line: str) -> None:
        # echo drops the colours unless it writes to a terminal.
        typer.echo(escape_control_chars(line, colours=True))

    try:
        files = tails.find_log_files(get_home(os.environ) / "logs", service or [])
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    tails.show(files, lines, print_log_line, follow=follow)


def env() -> None:
    """Print shell variables with the running stack's addresses: eval "$(iscp env)"."""
    import shlex

    from iscp_dagster.local.services.settings import get_home
    from iscp_dagster.local.services.state import find_running_stack
    from iscp_dagster.local.stack.environment import get_shell_variables

    if find_running_stack(get_home(os.environ)) is None:
        raise UnavailableError("the stack is not up; start it with `iscp up`")
    for name, value in get_shell_variables(os.environ).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


tests = typer.Typer(add_completion=False)
DEFAULT_PYTEST_ARGUMENTS = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""The arguments of pytest when none are given.

Many tests wait for services: three files at a time keep two processors busy.
"""

MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own there, for its user
"""A file system in memory, if there is one, where the tests' many small databases are faster."""
ROOM = 8 * 1024**3
"""Bytes that must be free there."""


@tests.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def run_tests(ctx: typer.Context) -> None:
    """Run the project's tests, three files at a time; your own pytest arguments replace that."""
    from iscp_dagster.local.services.settings import get_repository
    from iscp_dagster.model.imports import require_extra

    require_extra("test", "`iscp test`")
    os.chdir(get_repository())
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Without bytecode files, each of the tests' many processes would compile the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = ctx.args or DEFAULT_PYTEST_ARGUMENTS
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606
