"""`iscp endpoint`: where events are delivered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.events.options import EndpointName
from iscp_dagster.cli.jobs.options import AsJson
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from iscp_dagster.webhooks.recording import EndpointState

endpoint = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="List, pause, resume and try endpoints of webhooks.",
)


@endpoint.command("list")
def list_endpoints(*, as_json: AsJson = False) -> None:
    """List endpoints: their state, pending and delivered events, and dead letters."""
    from iscp_dagster.api.outbox import open_declared_outbox
    from iscp_dagster.cli.events import json as event_json
    from iscp_dagster.cli.events import show as event_show
    from iscp_dagster.cli.jobs.json import write

    summaries = open_declared_outbox(os.environ).summarize_endpoints()
    if as_json:
        write([event_json.describe_endpoint(summary) for summary in summaries])
    else:
        event_show.print_endpoints(summaries)


@endpoint.command()
def pause(
    name: EndpointName,
    *,
    reason: Annotated[
        str | None, typer.Option(help="Why it is paused.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing to an endpoint until it is resumed; its events wait."""
    from iscp_dagster.api.environment import get_user
    from iscp_dagster.api.outbox import open_declared_outbox

    outbox = open_declared_outbox(os.environ)
    outbox.check_endpoint(name)
    why = reason or f"paused by {get_user()}"
    _print_state(outbox.outbox.pause(name, why), as_json=as_json)


@endpoint.command()
def resume(name: EndpointName, *, as_json: AsJson = False) -> None:
    """Send to a paused or disabled endpoint again; pending events are due at once."""
    from iscp_dagster.api.outbox import open_declared_outbox

    outbox = open_declared_outbox(os.environ)
    outbox.check_endpoint(name)
    _print_state(outbox.outbox.resume(name), as_json=as_json)


@endpoint.command()
def ping(name: EndpointName, *, as_json: AsJson = False) -> None:
    """Send an endpoint a signed PING now, and show the answer. Exit code 1 unless it is 2xx.

    It is sent from this shell, with its secrets, even while the endpoint is paused.
    """
    import asyncio

    from iscp_dagster.api.outbox import open_declared_outbox
    from iscp_dagster.cli.parts.results import print_result
    from iscp_dagster.webhooks import service

    outbox = open_declared_outbox(os.environ)
    receiver = outbox.get_endpoint(name)
    answer = asyncio.run(service.ping(receiver, outbox.environ))
    fact = {"endpoint": name, "status": answer.status, "answer": answer.text}
    outcome = "no answer" if answer.status is None else f"answered {answer.status}"
    # In one line: a receiver's answer must not look like another line of output.
    body = " ".join(answer.text.split())
    text = f"{name}: {outcome}{f': {body}' if body else ''}"
    print_result(fact | {"accepted": answer.accepted}, text, as_json=as_json)
    raise typer.Exit(0 if answer.accepted else 1)


def _print_state(state: EndpointState, *, as_json: bool) -> None:
    from iscp_dagster.cli.parts.results import print_result

    fact = {"endpoint": state.name, "state": state.state, "reason": state.reason}
    print_result(fact, f"{state.name} is {state.state}.", as_json=as_json)
