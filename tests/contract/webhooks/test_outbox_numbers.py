"""The numbers that a trigger shows of its deliveries, and what the maintenance prunes."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from test_outbox import claim_ids, end

from iscp_dagster import Changes, Endpoint, SourceTable, Trigger
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location.assets.metadata import try_read_event_counts
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.upkeep.outbox import EVENT_RETENTION, prune_events
from iscp_dagster.webhooks import outbox as module
from runtime_support.manual_clock import NOON
from support.outbox.outbox_events import DEAD, DELIVERED, again, event, put

TRADES = SourceTable("shop.trades", key="id", path="/none", indexes=[Changes()])
TO = [Endpoint(each, url="https://example.com", secrets=["S"]) for each in ("alerts", "audit")]
ALARM = Trigger("alarm", on=TRADES, match="amount > 1", to=TO)
SOURCE = SourceTable("shop.trades", key="id", path="/none", indexes=[Changes()], triggers=[ALARM])


@pytest.fixture
def deployment(outbox, watch):
    return SimpleNamespace(log=SqlLog(outbox.engine), clock=watch)


def read_counts(deployment, trigger="alarm"):
    metadata = try_read_event_counts(deployment, SOURCE, trigger)
    return {name: getattr(value, "value", value) for name, value in metadata.items()}


def test_a_trigger_shows_its_events_by_state_and_its_endpoints(outbox, deployment):
    assert read_counts(deployment) == {
        "events_pending": 0,
        "events_delivered": 0,
        "events_dead": 0,
        "endpoints": "alerts active; audit active",
    }
    put(outbox, *map(event, range(1, 5)), event(9, to=("audit",)), event(1, trigger="other"))
    end(outbox, DELIVERED, "alarm-1", "alarm-4")
    end(outbox, DEAD, "alarm-2", status=400)
    outbox.pause("audit", "a deploy")
    counts = read_counts(deployment)
    oldest = (NOON + timedelta(seconds=3)).timestamp()
    assert counts.pop("oldest_pending") == pytest.approx(oldest)
    assert counts == {
        "events_pending": 2,
        "events_delivered": 2,
        "events_dead": 1,
        "endpoints": "alerts active; audit paused: a deploy",
    }
    assert read_counts(deployment, "changes") == {}


def test_numbers_are_counted_as_far_as_is_quick(outbox, deployment, monkeypatch):
    monkeypatch.setattr(module, "MOST_COUNTED", 3)
    put(outbox, *map(event, range(9)))
    assert read_counts(deployment)["events_pending"] == 3


def test_a_log_that_does_not_answer_fails_no_run(deployment, monkeypatch):
    def fail(*_):
        raise UnavailableError("the log is away")

    monkeypatch.setattr(module.Outbox, "summarize_trigger", fail)
    assert read_counts(deployment) == {}


def test_what_ended_a_month_ago_is_pruned_and_pending_events_stay(outbox, deployment, watch):
    put(outbox, *map(event, range(1, 5)))
    end(outbox, DELIVERED, "alarm-1")
    end(outbox, DEAD, "alarm-2", status=400)
    end(outbox, again(outbox, 5), "alarm-3", status=500)
    watch.move(EVENT_RETENTION.total_seconds() - 1)
    end(outbox, DELIVERED, "alarm-4")
    assert prune_events(deployment) == 0
    watch.move(2)
    # Two deliveries with an attempt each, and an attempt of the pending one.
    assert prune_events(deployment) == 3
    assert sorted(each.event_id for each in outbox.list_deliveries()) == ["alarm-3", "alarm-4"]
    assert claim_ids(outbox) == [["alarm-3"]]
    assert outbox.read_event_deliveries("alarm-1") == ([], [])
    (_, attempts) = outbox.read_event_deliveries("alarm-4")
    assert len(attempts) == 1
    assert prune_events(deployment) == 0
