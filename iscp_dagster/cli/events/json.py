"""What `iscp events` and `iscp endpoint` print with `--json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from iscp_dagster.api.facts import format_iso_time
from iscp_dagster.api.outbox import EndpointSummary
from iscp_dagster.webhooks.deliveries import DeliveryAttempt, EventDelivery


def describe_delivery(delivery: EventDelivery) -> dict[str, Any]:
    """An event and one of its endpoints, without the body."""
    return {
        "event_id": delivery.event_id,
        "event_type": delivery.event_type,
        "trigger": delivery.trigger,
        "tenant": delivery.tenant,
        "key": delivery.key,
        "source_timestamp": delivery.source_timestamp.text,
        "endpoint": delivery.endpoint,
        "state": delivery.state.label,
        "attempts": delivery.attempts,
        "recorded": delivery.recorded.isoformat(),
        "next_at": format_iso_time(delivery.next_at) if delivery.pending else None,
        "failed_at": format_iso_time(delivery.failed_at),
        "ended_at": format_iso_time(delivery.ended_at),
        "batch_id": delivery.batch_id,
    }


def describe_event(
    deliveries: Sequence[EventDelivery], attempts: Sequence[DeliveryAttempt]
) -> dict[str, Any]:
    """An event with its body, its deliveries and their attempts."""
    return {
        "event_id": deliveries[0].event_id,
        "body": json.loads(deliveries[0].body),
        "deliveries": [describe_delivery(delivery) for delivery in deliveries],
        "attempts": [_describe_attempt(attempt) for attempt in attempts],
    }


def describe_endpoint(summary: EndpointSummary) -> dict[str, Any]:
    """An endpoint; its URL may contain a secret and is left out."""
    return {
        "endpoint": summary.state.name,
        "declared": summary.declared,
        "state": summary.state.state,
        "reason": summary.state.reason,
        "changed_at": format_iso_time(summary.state.changed_at),
        "failing_since": format_iso_time(summary.state.health.failing_since),
        "refused_in_a_row": summary.state.health.consecutive_refusals,
        "delivered_at": format_iso_time(summary.state.delivered_at),
        "pending": summary.pending,
        "oldest_pending": format_iso_time(summary.oldest),
        "delivered": summary.delivered,
        "dead": summary.dead,
    }


def _describe_attempt(attempt: DeliveryAttempt) -> dict[str, Any]:
    return {
        "endpoint": attempt.endpoint,
        "message_id": attempt.message_id,
        "at": attempt.at.isoformat(),
        "seconds": attempt.seconds,
        "events": attempt.events,
        "status": attempt.status,
        "answer": attempt.answer,
        "verdict": attempt.verdict,
        "next_at": format_iso_time(attempt.next_at),
    }
