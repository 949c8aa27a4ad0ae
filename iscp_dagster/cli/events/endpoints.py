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
    """List endpoints: their state, what waits for them, and what they did not take."""
    from iscp_dagster.api.outbox import open_deliveries
    from iscp_dagster.cli.events import json as event_json
    from iscp_dagster.cli.events import show as event_show
    from iscp_dagster.cli.jobs.json import write

    found = open_deliveries(os.environ).standings()
    if as_json:
        write([event_json.endpoint(each) for each in found])
    else:
        event_show.endpoints(found)


@endpoint.command()
def pause(
    name: EndpointName,
    *,
    reason: Annotated[
        str | None, typer.Option(help="Why, for who looks at it later.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing to an endpoint until it is resumed; its events wait."""
    from iscp_dagster.api.environment import user
    from iscp_dagster.api.outbox import open_deliveries

    deliveries = open_deliveries(os.environ)
    deliveries.check_endpoint(name)
    why = reason or f"paused by {user()}"
    _changed(deliveries.outbox.pause(name, why), as_json=as_json)


@endpoint.command()
def resume(name: EndpointName, *, as_json: AsJson = False) -> None:
    """Send to an endpoint again, whether it was paused or disabled; what waits is due at once."""
    from iscp_dagster.api.outbox import open_deliveries

    deliveries = open_deliveries(os.environ)
    deliveries.check_endpoint(name)
    _changed(deliveries.outbox.resume(name), as_json=as_json)


@endpoint.command()
def ping(name: EndpointName, *, as_json: AsJson = False) -> None:
    """Send an endpoint a signed PING now, and show the answer. Exit code 1 unless it is 2xx.

    It is sent from here, with the secrets of this shell, also while the endpoint is paused.
    """
    import asyncio

    from iscp_dagster.api.outbox import open_deliveries
    from iscp_dagster.cli.parts.results import print_result
    from iscp_dagster.webhooks import service

    deliveries = open_deliveries(os.environ)
    wanted = deliveries.endpoint(name)
    answer = asyncio.run(service.ping(wanted, deliveries.environ))
    found = {"endpoint": name, "status": answer.status, "answer": answer.text}
    how = "no answer" if answer.status is None else f"answered {answer.status}"
    # A receiver's answer must not look like another line of ours.
    said = " ".join(answer.text.split())
    text = f"{name}: {how}{f': {said}' if said else ''}"
    print_result(found | {"accepted": answer.accepted}, text, as_json=as_json)
    raise typer.Exit(0 if answer.accepted else 1)


def _changed(state: EndpointState, *, as_json: bool) -> None:
    from iscp_dagster.cli.parts.results import print_result

    fact = {"endpoint": state.name, "state": state.state, "reason": state.reason}
    print_result(fact, f"{state.name} is {state.state}.", as_json=as_json)
