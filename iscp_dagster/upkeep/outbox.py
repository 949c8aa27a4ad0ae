"""The outbox of a deployment: what is shown of a trigger, and what is pruned every hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.webhooks.outbox import Outbox

EVENTS = timedelta(days=30)
"""How long events that were delivered or became dead letters are kept, and attempts."""


def outbox_of(deployment: Deployment) -> Outbox:
    """The deployment's outbox, in the database of its ISCP log."""
    assert isinstance(deployment.log, SqlLog)
    return Outbox(deployment.log.engine, clock=deployment.clock)


def prune_events(deployment: Deployment, kept: timedelta = EVENTS) -> int:
    """Delete events and attempts that ended longer ago than `kept`; returns how many.

    What is pending stays. Idempotent.
    """
    return outbox_of(deployment).prune(deployment.clock() - kept)


def numbers_of(deployment: Deployment, trigger: Trigger) -> dict[str, Any]:
    """What is shown of a trigger's events: how many by state, the oldest, the endpoints' states.

    Times are aware; empty without endpoints.
    """
    if not trigger.endpoints:
        return {}
    found = outbox_of(deployment).numbers(trigger.name, trigger.endpoints)
    return {
        **{f"events_{state}": number for state, number in found.events.items()},
        "oldest_pending": found.oldest,
        "endpoints": {
            name: f"{each.state}: {each.reason}" if each.reason else each.state
            for name, each in found.endpoints.items()
        },
    }
