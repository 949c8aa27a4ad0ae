"""A trigger's job on a real log: what commits together, and what fails alone."""

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.eventtriggers.pending_events import PendingEventBuilder
from iscp_dagster.joblog.sql.active_sets import store_active_set
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import FeedGoneError, FenceError, SchemaError, UnavailableError
from iscp_dagster.webhooks.deliveries import OutboxFullError
from iscp_dagster.webhooks.outbox import Outbox
from support.errors import assert_names, raises_naming
from support.jobs.one_table import in_memory
from support.lake.image_rows import GONE, Alerts, Trades

A1, A2, B1 = '["acme","1"]', '["acme","2"]', '["globex","1"]'
RISING = [
    {("acme", 1): 100, ("acme", 2): 900, ("globex", 1): 100},
    {("acme", 1): 600, ("globex", 1): 700},
    {("acme", 1): 450},
    {("acme", 1): 650},
    {("acme", 1): 300, ("acme", 2): GONE},
]


@pytest.fixture
def alerts(log):
    """A trigger with hysteresis whose jobs are at version 0."""
    alerts = Alerts(log, Trades(RISING))
    alerts.register("acme", "globex")
    alerts.iterate(0)
    return alerts


class Broken(Outbox):
    """Puts the events, then fails as the database may."""

    def record_events(self, connection, events, *, bounds=None):
        super().record_events(connection, events, bounds=bounds)
        raise sa.exc.OperationalError("INSERT", {}, Exception("the disk is full"))


def test_it_fires_on_transitions_and_not_on_changes_with_one_id_for_each_tenants_key(alerts):
    alerts.iterate(4)
    assert alerts.events() == [
        ("MATCH", "acme", A1, 1),
        ("UNMATCH", "acme", A1, 4),
        ("UNMATCH", "acme", A2, 4),
        ("MATCH", "globex", B1, 1),
    ]
    ids = [row["event_id"] for row in alerts.outbox()]
    assert len({*ids}) == 4
    at = SourceTimestamp.from_micros(1_000_123, version=1)
    assert ids[0] == alerts.consumer().ids.make_event_id("large_trade", A1, at)
    assert alerts.watermarks() == {"acme": 4, "globex": 4}
    acme, _ = (job.status.counts for job in alerts.log.list_jobs())
    assert [acme[name] for name in ("matches", "unmatches", "active")] == [1, 2, 0]


def test_a_row_that_matched_before_the_trigger_was_there_is_active_without_an_event(alerts):
    assert (alerts.events(), alerts.active()) == ([], {A2})
    assert (alerts.held("acme").row_count, alerts.held("globex").row_count) == (1, 0)


def test_with_initial_fire_it_gives_an_event_and_only_once(log):
    alerts = Alerts(log, Trades(RISING), initial="fire")
    alerts.register("acme", "globex")
    alerts.iterate(0)
    alerts.iterate(1)
    assert alerts.events() == [
        ("MATCH", "acme", A2, 0),
        ("MATCH", "acme", A1, 1),
        ("MATCH", "globex", B1, 1),
    ]


def test_the_body_is_the_events_six_fields_with_the_row_as_it_was(alerts):
    alerts.iterate(1, "acme")
    (row,) = alerts.outbox()
    assert json.loads(row["body"]) == {
        "event_id": row["event_id"],
        "event_type": "MATCH",
        "trigger_name": "large_trade",
        "timestamp": "2025-06-18T12:00:00.000Z",
        "source_timestamp": "1000123000",
        "data": {"desk": "acme", "id": 1, "amount": 600},
    }
    # The event of a row that leaves has its last values.
    alerts.iterate(4, "acme")
    body = json.loads(alerts.outbox()[-1]["body"])
    assert (body["event_type"], body["data"]["amount"]) == ("UNMATCH", 900)


def test_a_table_without_tenants_has_the_plain_key_in_its_ids(log):
    alerts = Alerts(log, Trades([{("", 1): 100}, {("", 1): 501}]), tenanted=False)
    alerts.register("default")
    alerts.iterate(0)
    alerts.iterate(1)
    assert alerts.events() == [("MATCH", "default", "1", 1)]


def test_a_failure_after_the_events_were_put_leaves_nothing_and_the_range_comes_again(alerts):
    sink = alerts.begin_run(1)
    before = alerts.active()
    with raises_naming(UnavailableError, "the disk is full"):
        alerts.consume(sink, outbox=Broken(alerts.log.engine))
    assert (alerts.events(), alerts.active()) == ([], before)
    assert alerts.watermarks() == {"acme": 0, "globex": 0}
    alerts.log.recover_run_jobs(["run"])
    alerts.iterate(4)
    assert len(alerts.events()) == 4


def test_a_job_taken_by_another_run_takes_its_events_with_it_and_the_others_come_again(alerts):
    sink = alerts.begin_run(1)
    retriever = alerts.retriever(sink, snapshot=False)
    # Lost after the rows were read, when only the transaction can tell.
    retriever = replace(retriever, find_lost_tenants=dict)
    alerts.log.cancel([alerts.key("globex")])
    with pytest.raises(FenceError):
        alerts.consumer().consume(retriever)
    assert (alerts.events(), alerts.watermarks()) == ([], {"acme": 0, "globex": 0})
    assert retriever.refused.keys() == {"globex"}
    left = replace(sink, claims=[each for each in sink.claims if each.key.tenant == "acme"])
    alerts.consume(left)
    assert alerts.events() == [("MATCH", "acme", A1, 1)]
    assert alerts.watermarks() == {"acme": 1, "globex": 0}


def test_a_job_lost_while_the_rows_came_gets_no_events_and_stops_no_other(alerts):
    sink = alerts.begin_run(1)
    alerts.log.cancel([alerts.key("globex")])
    retriever = alerts.consume(sink)
    assert retriever.refused.keys() == {"globex"}
    assert alerts.events() == [("MATCH", "acme", A1, 1)]
    assert alerts.watermarks() == {"acme": 1, "globex": 0}


def test_a_full_outbox_fails_the_tenant_for_now_and_nothing_of_it_is_written_or_lost(alerts):
    alerts.pending = 1
    alerts.iterate(1, "acme")
    retriever = alerts.iterate(1, "globex")
    (error,) = retriever.refused.values()
    assert (error.code, error.permanent) == (OutboxFullError.code, False)
    assert_names(str(error), "large_trade")
    assert alerts.watermarks() == {"acme": 1, "globex": 0}
    assert (alerts.held("globex").upto, alerts.active()) == (0, {A1, A2})
    alerts.log.recover_run_jobs(["run"])
    alerts.pending = 10
    alerts.iterate(4, "globex")
    assert alerts.events() == [("MATCH", "acme", A1, 1), ("MATCH", "globex", B1, 1)]


def test_a_value_without_a_form_in_json_fails_its_tenant_alone(alerts, monkeypatch):
    make_event = PendingEventBuilder.make_event

    def refuse_acme(self, tenant, fired):
        if tenant == "acme":
            raise SchemaError("Column 'amount' holds a thing")
        return make_event(self, tenant, fired)

    monkeypatch.setattr(PendingEventBuilder, "make_event", refuse_acme)
    retriever = alerts.iterate(1)
    assert retriever.refused.keys() == {"acme"}
    assert alerts.events() == [("MATCH", "globex", B1, 1)]
    assert alerts.watermarks() == {"acme": 0, "globex": 1}


def test_a_gap_is_noted_gives_no_event_and_leaves_the_active_rows_as_the_source_has_them(alerts):
    alerts.iterate(1)
    report = alerts.iterate(4, "acme", gap="the files of version 2 are gone").reports["acme"]
    assert_names(report["gap"], 2, 4, "the files of version 2 are gone")
    assert (report["matches"], report["unmatches"], report["active"]) == (0, 0, 0)
    assert [each[3] for each in alerts.events()] == [1, 1]
    assert alerts.active() == {B1}
    assert alerts.held("acme").gap == report["gap"]


def test_the_jobs_status_shows_after_which_commit_events_begin_and_the_gap(alerts):
    deployment = replace(in_memory(get_utc_now), log=alerts.log)

    def find_start(tenant):
        (job,) = alerts.log.list_jobs(tenant=tenant)
        kind = get_consumer_kind(job.spec.detail.consumer.type)
        return kind.find_history_start(alerts.source, job, deployment)

    start = find_start("acme")
    assert (start.at.version, start.gap) == (0, ())
    alerts.iterate(4, "acme", gap="the files are gone")
    alerts.register("initech", after=3)
    assert find_start("initech") is None
    alerts.iterate(4, "initech")
    start = find_start("initech")
    assert (start.at.version, start.gap) == (3, ())
    start = find_start("acme")
    assert start.at.version == 4
    assert_names(*start.gap, 1, 4, "the files are gone")


def test_a_row_in_between_stays_as_it_was_over_a_gap(alerts):
    alerts.iterate(1)
    alerts.iterate(2, gap="why")
    assert alerts.active() == {A1, A2, B1}
    assert "gap" not in alerts.iterate(4).reports["acme"]
    assert alerts.events()[2:] == [
        ("UNMATCH", "acme", A1, 4),
        ("UNMATCH", "acme", A2, 4),
    ]


def test_another_condition_is_another_generation_found_by_a_snapshot_without_events(alerts):
    alerts.iterate(1)
    events = alerts.events()
    alerts.match = "amount > 50"
    sink = alerts.begin_run(2, "acme")
    retriever = alerts.consume(sink)
    (error,) = retriever.refused.values()
    assert (type(error), alerts.watermarks()["acme"]) == (FeedGoneError, 1)
    # What reads unreadable changes as a snapshot does so for these, under the same claims.
    report = alerts.consume(sink, gap=str(error)).reports["acme"]
    assert_names(report["gap"], 2, "'large_trade'")
    assert alerts.events() == events
    assert alerts.watermarks()["acme"] == 2
    assert alerts.held("acme").definition == alerts.consumer().evaluator.definition_digest
    # In between by the conditions, and what was active by the earlier ones does not count.
    assert A1 not in alerts.active()


def test_a_job_that_is_registered_again_begins_anew(alerts):
    alerts.iterate(1)
    assert alerts.log.unregister(None, alerts.log.list_jobs()[0].name)
    alerts.register("acme", "globex")
    alerts.iterate(2)
    assert alerts.active() == {A2, B1}
    assert alerts.held("acme").gap == ""
    assert len(alerts.events()) == 2


def test_a_rebuilt_job_finds_its_active_rows_anew_and_notes_what_it_did_not_see(alerts):
    alerts.iterate(1)
    alerts.log.rebuild([alerts.key("acme")])
    report = alerts.iterate(3, "acme", gap="first synchronization").reports["acme"]
    assert_names(report["gap"], 2, 3, "first synchronization")
    assert len(alerts.events()) == 2


def test_a_tenant_that_appears_later_fires_for_its_first_rows(alerts):
    alerts.trades = Trades([*RISING, {("initech", 1): 800}, {("initech", 1): 100}])
    alerts.register("initech", after=4)
    alerts.iterate(6, "initech")
    assert alerts.events() == [
        ("MATCH", "initech", '["initech","1"]', 5),
        ("UNMATCH", "initech", '["initech","1"]', 6),
    ]
    assert alerts.held("initech").gap == ""


def test_commits_that_were_looked_at_do_not_fire_again(alerts):
    alerts.iterate(1)
    before = alerts.events()
    # As after a snapshot that is newer than the step that it was read for.
    with alerts.log.begin_write() as connection:
        store_active_set(connection, alerts.key("acme"), replace(alerts.held("acme"), upto=4))
    alerts.iterate(4, "acme")
    assert alerts.events() == before


def test_without_hysteresis_no_active_row_is_kept_but_counted(log):
    alerts = Alerts(log, Trades(RISING, hysteresis=False))
    alerts.register("acme", "globex")
    alerts.iterate(0)
    assert alerts.held("acme").row_count == 1
    report = alerts.iterate(2).reports["acme"]
    assert (report["matches"], report["unmatches"], report["active"]) == (1, 1, 1)
    assert alerts.active() == set()
    alerts.iterate(4)
    assert [each[:2] + each[3:] for each in alerts.events()] == [
        ("MATCH", "acme", 1),
        ("UNMATCH", "acme", 2),
        ("MATCH", "globex", 1),
        ("MATCH", "acme", 3),
        ("UNMATCH", "acme", 4),
        ("UNMATCH", "acme", 4),
    ]
    assert (alerts.held("acme").row_count, alerts.held("globex").row_count) == (0, 1)
