"""Ids of events per second, by algorithm and form, and the rest of what an event costs."""

from __future__ import annotations

from datetime import datetime, timezone

from bench.report import Report
from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.ids import ALGORITHMS, FORMS, IdScheme
from iscp_dagster.events.keys import event_key
from iscp_dagster.events.payload import Event
from iscp_dagster.events.timestamps import SourceTimestamp

EVENTS = 200_000


def measure(report: Report, rounds: int) -> None:
    at = SourceTimestamp(nanos=1705316445123456789, version=1)
    keys = [event_key("acme", [number]) for number in range(EVENTS)]
    for algorithm in ALGORITHMS:
        for form in FORMS:
            scheme, what = IdScheme(algorithm=algorithm, form=form), f"ids: {algorithm}, {form}"
            for _ in range(rounds):
                with report.timed(what):
                    for key in keys:
                        scheme.event_id("large_trade_alert", key, at)
            report.row(what, EVENTS)
    for _ in range(rounds):
        with report.timed("keys of tenant and number"):
            for number in range(EVENTS):
                event_key("acme", [number])
    report.row("keys of tenant and number", EVENTS)
    _bodies(report, rounds, at)


def _bodies(report: Report, rounds: int, at: SourceTimestamp) -> None:
    event = Event(
        event_id="acf67a288f80147280c9d4b1e99378cd",
        event_type=EventType.MATCH,
        trigger_name="large_trade_alert",
        timestamp=datetime.now(timezone.utc),
        source_timestamp=at,
        data={"trade_id": 114, "symbol": "AAPL", "quantity": 16459},
    )
    for _ in range(rounds):
        with report.timed("bodies of three columns"):
            for _ in range(EVENTS):
                event.body()
    report.row("bodies of three columns", EVENTS)
