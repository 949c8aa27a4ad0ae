"""What `iscp events` and `iscp endpoint` print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from iscp_dagster.api.outbox import EndpointSummary
from iscp_dagster.cli.jobs.show import line
from iscp_dagster.cli.parts.counting import count_nouns, print_counts
from iscp_dagster.cli.parts.tables import Listing, format_time, print_facts, print_listing
from iscp_dagster.webhooks.deliveries import DeliveryAttempt, EventDelivery

_FULL = "%Y-%m-%d %H:%M:%S UTC"
_SHORT = "%m-%d %H:%M:%S"


def print_deliveries(
    deliveries: Sequence[EventDelivery], limit: int, counts: Mapping[str, int]
) -> None:
    """Print how many deliveries are in each state, then a line per delivery; a terminal gets two.

    One would be wider than 80 columns.
    """
    if deliveries:
        print_counts(sum(counts.values()), "delivery", counts)
    heads = ("event\ntrigger, key", "type", "endpoint", "state\nattempts", "recorded\nnext try")
    rows = [
        (
            (delivery.event_id, f"{delivery.trigger} {delivery.key}"),
            *(delivery.event_type, delivery.endpoint),
            (delivery.state.label, str(delivery.attempts or "")),
            (format_time(delivery.recorded, _SHORT), _format_next_try(delivery, _SHORT)),
        )
        for delivery in deliveries
    ]
    print_listing(Listing(heads=heads, rows=rows))
    hint = f", the latest; --limit shows more than {limit:,}" if len(deliveries) == limit else ""
    line(f"{count_nouns(len(deliveries), 'delivery')}{hint}")


def print_event(deliveries: Sequence[EventDelivery], attempts: Sequence[DeliveryAttempt]) -> None:
    """Print an event's facts and body, then its deliveries and attempts."""
    first = deliveries[0]
    facts = {
        "event": first.event_id,
        "trigger": first.trigger,
        "type": first.event_type,
        "tenant": first.tenant,
        "key": first.key,
        "changed": f"{format_time(first.source_timestamp.at, _FULL)}, version "
        f"{first.source_timestamp.version}",
        "recorded": format_time(first.recorded, _FULL),
        "body": json.dumps(json.loads(first.body), indent=2, ensure_ascii=False),
    }
    print_facts(facts)
    for delivery in deliveries:
        line("")
        print_facts(_describe_delivery(delivery))
        _print_attempts([attempt for attempt in attempts if attempt.endpoint == delivery.endpoint])


def print_endpoints(summaries: Sequence[EndpointSummary]) -> None:
    """Print a line per endpoint, two on a terminal, and why one is not active."""
    heads = ("endpoint\nstate", "pending\noldest", "delivered\nlast", "dead", "failing since")
    rows = [
        (
            (summary.state.name, summary.state.state),
            (f"{summary.pending:,}", format_time(summary.oldest, _SHORT)),
            (f"{summary.delivered:,}", format_time(summary.state.delivered_at, _SHORT)),
            f"{summary.dead:,}",
            format_time(summary.state.health.failing_since, _SHORT),
        )
        for summary in summaries
    ]
    print_listing(Listing(heads=heads, rows=rows))
    for summary in summaries:
        if summary.state.reason:
            reason = " ".join(summary.state.reason.split())
            line(f"{summary.state.name} is {summary.state.state}: {reason}")
        if not summary.declared:
            line(f"{summary.state.name} is no longer declared")
    if not summaries:
        line("no endpoints")


def _describe_delivery(delivery: EventDelivery) -> dict[str, str]:
    facts = {
        "endpoint": delivery.endpoint,
        "state": delivery.state.label,
        "attempts": str(delivery.attempts),
    }
    if delivery.pending:
        facts["next try"] = _format_next_try(delivery, _FULL)
    if delivery.failed_at:
        facts["failed first"] = format_time(delivery.failed_at, _FULL)
    if delivery.ended_at:
        facts["ended"] = format_time(delivery.ended_at, _FULL)
    if delivery.batch_id:
        facts["batch"] = delivery.batch_id
    return facts


def _print_attempts(attempts: Sequence[DeliveryAttempt]) -> None:
    heads = ("attempt", "seconds", "status", "answer", "what follows")
    print_listing(Listing(heads=heads, rows=list(map(_build_attempt_row, attempts))))


def _build_attempt_row(attempt: DeliveryAttempt) -> tuple[str, ...]:
    verdict = attempt.verdict
    if attempt.next_at is not None:
        verdict = f"{attempt.verdict}, {format_time(attempt.next_at, _SHORT)}"
    status = "none" if attempt.status is None else str(attempt.status)
    return (
        format_time(attempt.at, _SHORT),
        f"{attempt.seconds:.2f}",
        status,
        attempt.answer,
        verdict,
    )


def _format_next_try(delivery: EventDelivery, form: str) -> str:
    return format_time(delivery.next_at, form) if delivery.pending else ""
