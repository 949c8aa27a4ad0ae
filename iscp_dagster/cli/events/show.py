"""What `iscp events` and `iscp endpoint` print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from iscp_dagster.api.outbox import Standing
from iscp_dagster.cli.jobs.show import line
from iscp_dagster.cli.parts.counting import print_counts
from iscp_dagster.cli.parts.tables import Listing, print_facts, print_listing, time_text
from iscp_dagster.webhooks.pending import Attempt, Delivery

_FULL = "%Y-%m-%d %H:%M:%S UTC"
_SHORT = "%m-%d %H:%M:%S"


def deliveries(found: Sequence[Delivery], limit: int, counts: Mapping[str, int]) -> None:
    """Print counts by state, then a line per event and endpoint; a terminal gets two.

    One would be wider than 80 columns.
    """
    if found:
        print_counts(sum(counts.values()), "event", counts)
    heads = ("event\ntrigger, key", "type", "endpoint", "state\nattempts", "recorded\nnext try")
    rows = [
        (
            (each.event_id, f"{each.trigger} {each.key}"),
            *(each.event_type, each.endpoint),
            (each.state.label, str(each.attempts or "")),
            (time_text(each.recorded, _SHORT), _next(each, _SHORT)),
        )
        for each in found
    ]
    print_listing(Listing(heads=heads, rows=rows))
    more = f", the latest; --limit shows more than {limit:,}" if len(found) == limit else ""
    line(f"{len(found):,} event{'s' * (len(found) != 1)}{more}")


def whole(found: Sequence[Delivery], attempts: Sequence[Attempt]) -> None:
    """Print an event's facts and body, then its deliveries and attempts."""
    first = found[0]
    facts = {
        "event": first.event_id,
        "trigger": first.trigger,
        "type": first.event_type,
        "tenant": first.tenant,
        "key": first.key,
        "changed": f"{time_text(first.source_timestamp.at, _FULL)}, version "
        f"{first.source_timestamp.version}",
        "recorded": time_text(first.recorded, _FULL),
        "body": json.dumps(json.loads(first.body), indent=2, ensure_ascii=False),
    }
    print_facts(facts)
    for each in found:
        line("")
        print_facts(_delivery(each))
        _attempts([one for one in attempts if one.endpoint == each.endpoint])


def endpoints(found: Sequence[Standing]) -> None:
    """Print a line per endpoint, two on a terminal, and why one is not active."""
    heads = ("endpoint\nstate", "pending\noldest", "delivered\nlast", "dead", "failing since")
    rows = [
        (
            (each.state.name, each.state.state),
            (f"{each.pending:,}", time_text(each.oldest, _SHORT)),
            (f"{each.delivered:,}", time_text(each.state.delivered_at, _SHORT)),
            f"{each.dead:,}",
            time_text(each.state.health.failing_since, _SHORT),
        )
        for each in found
    ]
    print_listing(Listing(heads=heads, rows=rows))
    for each in found:
        if each.state.reason:
            line(f"{each.state.name} is {each.state.state}: {' '.join(each.state.reason.split())}")
        if not each.declared:
            line(f"{each.state.name} is no longer declared")
    if not found:
        line("no endpoints")


def _delivery(each: Delivery) -> dict[str, str]:
    facts = {"endpoint": each.endpoint, "state": each.state.label, "attempts": str(each.attempts)}
    if each.pending:
        facts["next try"] = _next(each, _FULL)
    if each.failed_at:
        facts["failed first"] = time_text(each.failed_at, _FULL)
    if each.ended_at:
        facts["ended"] = time_text(each.ended_at, _FULL)
    if each.batch_id:
        facts["batch"] = each.batch_id
    return facts


def _attempts(found: Sequence[Attempt]) -> None:
    heads = ("attempt", "seconds", "status", "answer", "what follows")
    print_listing(Listing(heads=heads, rows=list(map(_attempt, found))))


def _attempt(each: Attempt) -> tuple[str, ...]:
    follows = each.verdict
    if each.next_at is not None:
        follows = f"{each.verdict}, {time_text(each.next_at, _SHORT)}"
    status = "none" if each.status is None else str(each.status)
    return (time_text(each.at, _SHORT), f"{each.seconds:.2f}", status, each.answer, follows)


def _next(each: Delivery, form: str) -> str:
    return time_text(each.next_at, form) if each.pending else ""
