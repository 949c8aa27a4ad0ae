"""The arguments and options of `iscp invocations`."""

from typing import Annotated

import typer

from durable_invocations.runtime.store.views import Status

InvocationId = Annotated[
    str, typer.Argument(metavar="INVOCATION", help="An invocation's id.", show_default=False)
]
OneStatus = Annotated[
    str | None,
    typer.Option(
        "--status",
        help=f"One of {', '.join(status.label for status in Status)} (also failed), or failed.",
        show_default=False,
    ),
]
OneService = Annotated[
    str | None, typer.Option("--service", help="One service; default: all.", show_default=False)
]
OneHandler = Annotated[
    str | None, typer.Option("--handler", help="One handler; default: all.", show_default=False)
]
OneKey = Annotated[
    str | None, typer.Option("--key", help="One key of an object.", show_default=False)
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="The most invocations to list.")]
