"""`iscp events`: what triggers fired, and what became of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from iscp_dagster.cli.events import options
from iscp_dagster.cli.jobs.options import AsJson, TenantOrAll
from iscp_dagster.cli.parts.counting import count_nouns
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iscp_dagster.api.outbox import DeclaredOutbox
    from iscp_dagster.webhooks.history import OutboxSelection

events = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="List, show and resend the events of triggers.",
)


@events.command("list")
def list_events(
    *,
    trigger: options.OneTrigger = None,
    endpoint: options.OneEndpoint = None,
    tenant: TenantOrAll = None,
    state: options.EventState = None,
    from_: options.From = None,
    to: options.Until = None,
    limit: options.Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Count events by state, and list them with attempts and next try, the latest first."""
    from iscp_dagster.cli.events import json as event_json
    from iscp_dagster.cli.events import show as event_show
    from iscp_dagster.cli.jobs.json import write

    outbox = _open_deliveries()
    names = {"trigger": trigger, "endpoint": endpoint, "tenant": tenant, "state": state}
    selection = _parse_selection(outbox, names, from_, to)
    event_deliveries = outbox.outbox.list_deliveries(selection, limit=limit)
    if as_json:
        write([event_json.describe_delivery(delivery) for delivery in event_deliveries])
    else:
        event_show.print_deliveries(event_deliveries, limit, outbox.outbox.count_states(selection))


@events.command()
def show(
    id_: options.EventId, *, endpoint: options.OneEndpoint = None, as_json: AsJson = False
) -> None:
    """Show an event: its body, where it is delivered, each attempt and its answer."""
    from iscp_dagster.cli.events import json as event_json
    from iscp_dagster.cli.events import show as event_show
    from iscp_dagster.cli.jobs.json import write

    deliveries, attempts = _open_deliveries().outbox.read_event_deliveries(id_, endpoint)
    if not deliveries:
        raise _make_no_event_error(id_, endpoint)
    if as_json:
        write(event_json.describe_event(deliveries, attempts))
    else:
        event_show.print_event(deliveries, attempts)


@events.command()
def resend(
    id_: options.EventId, *, endpoint: options.OneEndpoint = None, as_json: AsJson = False
) -> None:
    """Send an event again, under the same id, whether it was delivered or is a dead letter."""
    from iscp_dagster.cli.parts.results import print_result

    number = _open_deliveries().outbox.resend_event(id_, endpoint)
    if not number:
        raise _make_no_event_error(id_, endpoint)
    text = f"{id_} is sent again, to {number:,} endpoint{'s' * (number != 1)}."
    print_result({"event_id": id_, "endpoints": number}, text, as_json=as_json)


@events.command()
def replay(
    trigger: options.TriggerName,
    *,
    from_: options.FromWhen,
    to: options.Until = None,
    endpoint: options.OneEndpoint = None,
    tenant: TenantOrAll = None,
    state: options.EventState = None,
    as_json: AsJson = False,
) -> None:
    """Send a trigger's events of a time range again, in order, under the same ids."""
    from iscp_dagster.cli.parts.results import print_result

    outbox = _open_deliveries()
    names = {"trigger": trigger, "endpoint": endpoint, "tenant": tenant, "state": state}
    selection = _parse_selection(outbox, names, from_, to)
    number = outbox.outbox.replay(selection)
    verb = "is" if number == 1 else "are"
    text = f"{count_nouns(number, 'delivery')} of {trigger} {verb} sent again."
    print_result({"trigger": trigger, "deliveries": number}, text, as_json=as_json)


def _open_deliveries() -> DeclaredOutbox:
    from iscp_dagster.api.outbox import open_declared_outbox

    return open_declared_outbox(os.environ)


def _parse_selection(
    outbox: DeclaredOutbox, names: Mapping[str, str | None], from_: str | None, to: str | None
) -> OutboxSelection:
    """The events that the options select. Raises ConfigError for a bad name or time."""
    from iscp_dagster.cli.jobs.specs import parse_time
    from iscp_dagster.webhooks.history import OutboxSelection

    now = outbox.outbox.clock()
    _check_names(outbox, names)
    return OutboxSelection(
        **names,
        source_from=parse_time(from_, now) if from_ else None,
        source_to=parse_time(to, now) if to else None,
    )


def _check_names(outbox: DeclaredOutbox, names: Mapping[str, str | None]) -> None:
    from iscp_dagster.model.errors import ConfigError
    from iscp_dagster.webhooks.tables import DeliveryState

    trigger, endpoint, state = names["trigger"], names["endpoint"], names["state"]
    labels = list(dict.fromkeys(delivery_state.label for delivery_state in DeliveryState))
    if state is not None and state not in labels:
        raise ConfigError(f"The state {state!r} is unknown; use one of {', '.join(labels)}.")
    if trigger is not None:
        outbox.check_trigger(trigger)
    if endpoint is not None:
        outbox.check_endpoint(endpoint)


def _make_no_event_error(id_: str, endpoint: str | None) -> Exception:
    from iscp_dagster.model.errors import ConfigError

    to = "" if endpoint is None else f" for endpoint {endpoint!r}"
    return ConfigError(f"There is no event {id_!r}{to}; `iscp events list` shows those kept.")
