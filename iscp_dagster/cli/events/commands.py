"""`iscp events`: what triggers fired, and what became of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from iscp_dagster.cli.events import options
from iscp_dagster.cli.jobs.options import AsJson, MaybeTenant
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iscp_dagster.api.outbox import Deliveries
    from iscp_dagster.webhooks.history import Chosen

events = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="List, show and send again the events of triggers.",
)


@events.command("list")
def list_events(
    *,
    trigger: options.OneTrigger = None,
    endpoint: options.OneEndpoint = None,
    tenant: MaybeTenant = None,
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

    deliveries = _opened()
    names = {"trigger": trigger, "endpoint": endpoint, "tenant": tenant, "state": state}
    chosen = _chosen(deliveries, names, from_, to)
    found = deliveries.outbox.listed(chosen, limit=limit)
    if as_json:
        write([event_json.delivery(each) for each in found])
    else:
        event_show.deliveries(found, limit, deliveries.outbox.count_states(chosen))


@events.command()
def show(
    id_: options.EventId, *, endpoint: options.OneEndpoint = None, as_json: AsJson = False
) -> None:
    """Show an event: its body, where it is delivered, each attempt and its answer."""
    from iscp_dagster.cli.events import json as event_json
    from iscp_dagster.cli.events import show as event_show
    from iscp_dagster.cli.jobs.json import write

    found, attempts = _opened().outbox.show(id_, endpoint)
    if not found:
        raise _no_event(id_, endpoint)
    if as_json:
        write(event_json.whole(found, attempts))
    else:
        event_show.whole(found, attempts)


@events.command()
def resend(
    id_: options.EventId, *, endpoint: options.OneEndpoint = None, as_json: AsJson = False
) -> None:
    """Send an event again, under the same id, whether it was delivered or is a dead letter."""
    from iscp_dagster.cli.parts.results import print_result

    sent = _opened().outbox.resend(id_, endpoint)
    if not sent:
        raise _no_event(id_, endpoint)
    text = f"{id_} is sent again, to {sent:,} endpoint{'s' * (sent != 1)}."
    print_result({"event_id": id_, "endpoints": sent}, text, as_json=as_json)


@events.command()
def replay(
    trigger: options.TriggerName,
    *,
    from_: options.FromWhen,
    to: options.Until = None,
    endpoint: options.OneEndpoint = None,
    tenant: MaybeTenant = None,
    state: options.EventState = None,
    as_json: AsJson = False,
) -> None:
    """Send a trigger's events of a time range again, in order, under the same ids."""
    from iscp_dagster.cli.parts.results import print_result

    deliveries = _opened()
    names = {"trigger": trigger, "endpoint": endpoint, "tenant": tenant, "state": state}
    chosen = _chosen(deliveries, names, from_, to)
    sent = deliveries.outbox.replay(chosen)
    some = f"1 event of {trigger} is" if sent == 1 else f"{sent:,} events of {trigger} are"
    print_result({"trigger": trigger, "events": sent}, f"{some} sent again.", as_json=as_json)


def _opened() -> Deliveries:
    from iscp_dagster.api.outbox import open_deliveries

    return open_deliveries(os.environ)


def _chosen(
    deliveries: Deliveries, names: Mapping[str, str | None], from_: str | None, to: str | None
) -> Chosen:
    """Which events the options name. Raises ConfigError for a name or a time that is none."""
    from iscp_dagster.cli.jobs.specs import moment_of
    from iscp_dagster.webhooks.history import Chosen

    now = deliveries.outbox.clock()
    _check(deliveries, names)
    return Chosen(
        **names,
        source_from=moment_of(from_, now) if from_ else None,
        source_to=moment_of(to, now) if to else None,
    )


def _check(deliveries: Deliveries, names: Mapping[str, str | None]) -> None:
    from iscp_dagster.model.errors import ConfigError
    from iscp_dagster.webhooks.tables import State

    trigger, endpoint, state = names["trigger"], names["endpoint"], names["state"]
    known = list(dict.fromkeys(each.label for each in State))
    if state is not None and state not in known:
        raise ConfigError(f"The state {state!r} is unknown; use one of {', '.join(known)}.")
    if trigger is not None:
        deliveries.check_trigger(trigger)
    if endpoint is not None:
        deliveries.check_endpoint(endpoint)


def _no_event(id_: str, endpoint: str | None) -> Exception:
    from iscp_dagster.model.errors import ConfigError

    to = "" if endpoint is None else f" for endpoint {endpoint!r}"
    return ConfigError(f"There is no event {id_!r}{to}; `iscp events list` shows those kept.")
