"""The outbox of a deployment: what is shown of a trigger, and what is pruned every hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.webhooks.outbox import Outbox

EVENT_RETENTION = timedelta(days=30)
"""How long events that were delivered or became dead letters are kept, and attempts."""


def open_outbox(deployment: Deployment) -> Outbox:
    """The deployment's outbox, in the database of its ISCP log."""
    assert isinstance(deployment.log, SqlLog)
    return Outbox(deployment.log.engine, clock=deployment.clock)


def prune_events(deployment: Deployment, retention: timedelta = EVENT_RETENTION) -> int:
    """Delete events and attempts that ended longer ago than `retention`; returns how many.

    Pending events stay. Idempotent.
    """
    return open_outbox(deployment).prune(deployment.clock() - retention)


def describe_events(deployment: Deployment, trigger: Trigger) -> dict[str, Any]:
    """What is shown of a trigger's events: how many by state, the oldest, the endpoints' states.

    Times are aware; empty without endpoints.
    """
    if not trigger.endpoints:
        return {}
    summary = open_outbox(deployment).summarize_trigger(trigger.name, trigger.endpoints)
    return {
        **{f"events_{state}": number for state, number in summary.events.items()},
        "oldest_pending": summary.oldest,
        "endpoints": {
            name: f"{endpoint.state}: {endpoint.reason}" if endpoint.reason else endpoint.state
            for name, endpoint in summary.endpoints.items()
        },
    }
