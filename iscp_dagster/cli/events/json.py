"""What `iscp events` and `iscp endpoint` print with `--json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from iscp_dagster.api.facts import at
from iscp_dagster.api.outbox import Standing
from iscp_dagster.webhooks.pending import Attempt, Delivery


def delivery(each: Delivery) -> dict[str, Any]:
    """An event and one of its endpoints, without the body."""
    return {
        "event_id": each.event_id,
        "event_type": each.event_type,
        "trigger": each.trigger,
        "tenant": each.tenant,
        "key": each.key,
        "source_timestamp": each.source_timestamp.text,
        "endpoint": each.endpoint,
        "state": each.state.label,
        "attempts": each.attempts,
        "recorded": each.recorded.isoformat(),
        "next_at": at(each.next_at) if each.pending else None,
        "failed_at": at(each.failed_at),
        "ended_at": at(each.ended_at),
        "batch_id": each.batch_id,
    }


def whole(found: Sequence[Delivery], attempts: Sequence[Attempt]) -> dict[str, Any]:
    """An event with its body, its deliveries and their attempts."""
    return {
        "event_id": found[0].event_id,
        "body": json.loads(found[0].body),
        "deliveries": [delivery(each) for each in found],
        "attempts": [_attempt(each) for each in attempts],
    }


def endpoint(each: Standing) -> dict[str, Any]:
    """An endpoint; its URL may contain a secret and is left out."""
    return {
        "endpoint": each.state.name,
        "declared": each.declared,
        "state": each.state.state,
        "reason": each.state.reason,
        "changed_at": at(each.state.changed_at),
        "failing_since": at(each.state.health.failing_since),
        "refused_in_a_row": each.state.health.in_a_row,
        "delivered_at": at(each.state.delivered_at),
        "pending": each.pending,
        "oldest_pending": at(each.oldest),
        "delivered": each.delivered,
        "dead": each.dead,
    }


def _attempt(each: Attempt) -> dict[str, Any]:
    return {
        "endpoint": each.endpoint,
        "message_id": each.message_id,
        "at": each.at.isoformat(),
        "seconds": each.seconds,
        "events": each.events,
        "status": each.status,
        "answer": each.answer,
        "verdict": each.verdict,
        "next_at": at(each.next_at),
    }
