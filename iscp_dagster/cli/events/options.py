"""The arguments and options of the commands on events."""

from typing import Annotated

import typer

from iscp_dagster.model.clock import DURATION

TIME = f"how long ago ({DURATION}), or an ISO time."

EventId = Annotated[str, typer.Argument(metavar="ID", help="An event's id.", show_default=False)]
TriggerName = Annotated[
    str, typer.Argument(metavar="TRIGGER", help="A trigger's name.", show_default=False)
]
EndpointName = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="An endpoint's name.", show_default=False)
]
OneTrigger = Annotated[
    str | None, typer.Option("--trigger", help="One trigger; default: all.", show_default=False)
]
OneEndpoint = Annotated[
    str | None, typer.Option("--endpoint", help="One endpoint; default: all.", show_default=False)
]
EventState = Annotated[
    str | None,
    typer.Option("--state", help="pending, delivered or dead; default: all.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option("--from", help=f"Changes committed from then on: {TIME}", show_default=False),
]
FromWhen = Annotated[
    str, typer.Option("--from", help=f"Changes committed from then on: {TIME}", show_default=False)
]
Until = Annotated[
    str | None,
    typer.Option("--to", help=f"Changes committed before: {TIME}", show_default=False),
]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="The most events to list.")]
