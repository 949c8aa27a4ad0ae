"""The `iscp` command line. Each command lives in a module of its own, imported when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from durable_invocations.errors import DurableError
from iscp_dagster.cli.parts.group import Group
from iscp_dagster.cli.parts.sanitizing import escape_control_chars
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.imports import ASSETS

# A command is a function that typer understands, or a typer app with commands of its own. Its
# module imports what is slow inside the function, so that `iscp --help` stays quick.
COMMANDS = {
    "up": "iscp_dagster.cli.stack:up",
    "down": "iscp_dagster.cli.stack:down",
    "env": "iscp_dagster.cli.stack:env",
    "status": "iscp_dagster.cli.stack:status",
    "logs": "iscp_dagster.cli.stack:show_logs",
    "health": "iscp_dagster.cli.health:show_health",
    "demo": "iscp_dagster.cli.demo:demo",
    "verify": "iscp_dagster.cli.verify:verify",
    "job": "iscp_dagster.cli.jobs.commands:job",
    "wait": "iscp_dagster.cli.jobs.wait:wait",
    "serve": "iscp_dagster.cli.serve:serve",
    "dlq": "iscp_dagster.cli.dlq.commands:dlq",
    "usage": "iscp_dagster.cli.jobs.usage:usage",
    "events": "iscp_dagster.cli.events.commands:events",
    "endpoint": "iscp_dagster.cli.events.endpoints:endpoint",
    "send": "iscp_dagster.cli.events.send:send",
    "invocations": "iscp_dagster.cli.invocations.commands:invocations",
    "test": "iscp_dagster.cli.stack:tests",
}
INTERRUPTED = 130


class LazyGroup(Group):
    """A group whose commands are imported by name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Lists and suggestions need only the names.
        self.commands: Any = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  (typer's signature)
        place = COMMANDS.get(cmd_name)
        return load(cmd_name, place) if place else None


def load(name: str, place: str) -> Any:
    """The command at `module:attribute`, under the given name."""
    module, _, attribute = place.partition(":")
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        wrapper = typer.Typer(add_completion=False)
        wrapper.command(name)(target)
        target = wrapper
    command = typer.main.get_command(target)
    command.name = name
    return command


app = typer.Typer(
    name="iscp",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:  # noqa: FBT001  (typer's signature)
    if requested:
        print(f"iscp {version('iscp_dagster')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def iscp(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Keep ClickHouse index tables in step with Delta Lake tables."""


def main() -> None:
    """Run the command line; an expected error is shown as one message, with exit code 1.

    The module that declares the tables may be in the working directory, as with Dagster's `-m`:
    searched first if ISCP_ASSETS names the module, else last.
    """
    sys.path.insert(0 if os.environ.get(ASSETS) else len(sys.path), str(Path.cwd()))
    try:
        app(prog_name="iscp")
    except (IscpError, DurableError) as problem:
        # The message may quote a log, whose colours a terminal shows.
        typer.echo(f"iscp: {escape_control_chars(str(problem), colours=True)}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print("iscp: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
