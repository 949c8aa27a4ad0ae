"""Ids of events per second, by algorithm and form, and the rest of what an event costs."""

from __future__ import annotations

from datetime import datetime, timezone

from bench.report import BenchReport
from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.ids import ALGORITHMS, FORMS, IdScheme
from iscp_dagster.events.keys import make_event_key
from iscp_dagster.events.payload import TriggerEvent
from iscp_dagster.events.timestamps import SourceTimestamp

EVENTS = 200_000


def measure(report: BenchReport, rounds: int) -> None:
    at = SourceTimestamp(nanos=1705316445123456789, version=1)
    keys = [make_event_key("acme", [number]) for number in range(EVENTS)]
    for algorithm in ALGORITHMS:
        for form in FORMS:
            scheme, label = IdScheme(algorithm=algorithm, form=form), f"ids: {algorithm}, {form}"
            for _ in range(rounds):
                with report.measure_time(label):
                    for key in keys:
                        scheme.make_event_id("large_trade_alert", key, at)
            report.add_rate(label, EVENTS)
    for _ in range(rounds):
        with report.measure_time("keys of tenant and number"):
            for number in range(EVENTS):
                make_event_key("acme", [number])
    report.add_rate("keys of tenant and number", EVENTS)
    _measure_bodies(report, rounds, at)


def _measure_bodies(report: BenchReport, rounds: int, at: SourceTimestamp) -> None:
    event = TriggerEvent(
        event_id="acf67a288f80147280c9d4b1e99378cd",
        event_type=EventType.MATCH,
        trigger_name="large_trade_alert",
        timestamp=datetime.now(timezone.utc),
        source_timestamp=at,
        data={"trade_id": 114, "symbol": "AAPL", "quantity": 16459},
    )
    for _ in range(rounds):
        with report.measure_time("bodies of three columns"):
            for _ in range(EVENTS):
                event.encode_body()
    report.add_rate("bodies of three columns", EVENTS)
