"""Event triggers on real services: each transition once, however the commits are cut."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa

from iscp_dagster import Endpoint, Trigger, View
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.io_manager import build_outcome_metadata
from iscp_dagster.planning.declared import make_job_specs, make_new_jobs
from iscp_dagster.webhooks.tables import ISCP_OUTBOX
from support.errors import assert_names
from support.lake.deals_table import TENANTS, dealings
from support.lake.delta_tables import Table, deployment_at

HOOK = Endpoint("hook", url="https://example.com/hook", secrets=["S"])
FIRST = 2
"""The version of the first iteration."""


def triggers(source):
    big = View("big", of=source, where="amount > 100", columns={"gross": "amount * 1.19"})
    over = {"match": "gross > 500", "unmatch": "gross < 150", "columns": ["gross"]}
    return [
        Trigger("high", on=big, to=[HOOK], **over),
        Trigger("seen", on=source, to=[HOOK], match="amount > 100", initial="fire"),
    ]


def high(row, *, active):
    """Whether the row is active for the first trigger; None: not in the view."""
    if row is None or row["amount"] is None or row["amount"] <= 100:
        return False
    gross = row["amount"] * Decimal("1.19")
    return gross > 500 or (active and gross >= 150)


def seen(row, *, active):
    del active
    return row is not None and row["amount"] is not None and row["amount"] > 100


def expect_events(model, name, rule, moments, upto, first=FIRST):
    """Return (event id, type) of each transition after the first iteration, up to `first`."""
    events = set()
    for tenant, k in {key for state in model.states for key in state}:
        active = False
        key = json.dumps([tenant, str(k)], separators=(",", ":"))
        for version in range(first, upto + 1):
            now = bool(rule(model.states[version].get((tenant, k)), active=active))
            if now != active and (version > first or name == "seen"):
                at = SourceTimestamp.from_micros(moments(version).micros, version=version)
                event_id = IdScheme().make_event_id(name, key, at)
                events.add((event_id, "MATCH" if now else "UNMATCH"))
            active = now
    return events


def read_outbox(table):
    with table.deployment.log.begin_read() as connection:
        rows = connection.execute(sa.select(ISCP_OUTBOX).order_by(ISCP_OUTBOX.c.number))
        return [dict(row) for row in rows.mappings()]


def run(table, upto):
    outcomes = table.run(table.iteration(*TENANTS, to=upto))
    assert not [outcome for outcome in outcomes if isinstance(outcome, FailedStep)]
    return {(outcome.job_name, outcome.tenant): outcome for outcome in outcomes}


@pytest.fixture(scope="module")
def followed(clickhouse_url, spark_remote, tmp_path_factory):
    """The model, a table that was followed in one iteration, and one followed in several."""
    lake = str(tmp_path_factory.mktemp("lake"))
    one, several = (
        deployment_at(clickhouse_url, spark_remote, tmp_path_factory.mktemp(name), lake=lake)
        for name in ("one", "several")
    )
    table = Table.make(one, create=False, key="k")
    model = dealings(Path(table.path), table.sql, lambda: table.version)
    table = replace(table, source=replace(table.source, triggers=triggers(table.source)))
    tables = table, replace(table, deployment=several)
    last = model.gap[0]
    for table, cuts in zip(tables, ([last], [3, 9, last]), strict=True):
        for upto in [FIRST, *cuts]:
            run(table, upto)
    return model, tables


def test_one_iteration_and_several_give_the_events_of_the_model_under_the_same_ids(followed):
    model, tables = followed
    moments = tables[0].deployment.make_delta_log(tables[0].source).get_moment
    for name, rule in (("high", high), ("seen", seen)):
        events = expect_events(model, name, rule, moments, model.gap[0])
        assert len(events) > 9
        for table in tables:
            rows = [row for row in read_outbox(table) if row["trigger_name"] == name]
            assert len(rows) == len(events)
            assert {(row["event_id"], row["event_type"]) for row in rows} == events


def test_a_body_has_the_key_and_the_declared_columns(followed):
    _, (table, _) = followed
    bodies = [json.loads(row["body"]) for row in read_outbox(table)]
    high = [body for body in bodies if body["trigger_name"] == "high"]
    assert {tuple(body["data"]) for body in high} == {("tenant", "k", "gross")}
    matches = {body["data"]["gross"] for body in high if body["event_type"] == "MATCH"}
    assert matches == {"1071.0119"}


def test_a_gap_and_a_changed_condition_give_no_event_and_are_shown(followed):
    model, (table, _) = followed
    events, (before, after) = len(read_outbox(table)), model.gap
    outcomes = run(table, after)
    assert len(read_outbox(table)) == events
    for tenant in TENANTS:
        metadata = build_outcome_metadata(outcomes["high", tenant], {})
        assert_names(metadata["gap"], f"{before + 1} to {after}")
        rows = [row for key, row in model.states[after].items() if key[0] == tenant]
        assert metadata["active"] >= sum(high(row, active=False) for row in rows)
        assert (metadata["matches"], metadata["unmatches"]) == (0, 0)
    # Another condition needs a snapshot, but only for its own jobs.
    first, second = table.source.triggers
    changed = [replace(first, match="gross > 160"), second]
    table = replace(table, source=replace(table.source, triggers=changed))
    outcomes = run(table, after + 1)
    kinds = {(name, outcome.plan.kind.value) for (name, _), outcome in outcomes.items()}
    assert kinds == {("high", "snapshot"), ("seen", "tail")}
    gaps = {(name, outcome.report.get("gap")) for (name, _), outcome in outcomes.items()}
    ((name, gap),) = gaps - {("seen", None)}
    assert name == "high"
    assert_names(gap, f"{after + 1} to {after + 1}", "'high'")
    keys_before, keys_after = (
        {key for key, row in model.states[version].items() if seen(row, active=False)}
        for version in (after, after + 1)
    )
    fired = [(row["trigger_name"], row["event_key"]) for row in read_outbox(table)[events:]]
    changed = keys_before ^ keys_after
    assert changed
    assert sorted(fired) == sorted(("seen", f'["{tenant}","{k}"]') for tenant, k in changed)


def test_a_broken_trigger_stops_no_other_and_newcomers_fire_from_their_first_commit(
    followed, clickhouse_url, spark_remote, tmp_path
):
    model, (table, _) = followed
    lake, upto = table.deployment.lake, 4
    on = table.source
    broken = [
        Trigger("astray", on=on, match="nowhere > 1"),
        Trigger("lacking", on=on, match="amount > 1", columns=["absent"]),
    ]
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path, lake=lake)
    source = replace(on, triggers=[*triggers(on), *broken])
    table = replace(table, deployment=deployment, source=source)
    log = deployment.make_delta_log(source)
    # As the runner registers the jobs of tenants that it finds in the second commit.
    jobs = make_new_jobs(log.get_table_id(), TENANTS, make_job_specs(source, source.consumers))
    deployment.log.register_many([replace(job, watermark=log.get_moment(0)) for job in jobs])
    outcomes = table.run(table.iteration(*TENANTS, to=upto))
    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedStep)]
    messages = {outcome.claim.key.job_name: outcome.message for outcome in failed}
    assert messages.keys() == {"astray", "lacking"}
    assert_names(messages["astray"], "nowhere")
    assert_names(messages["lacking"], "'absent'")
    events = [
        expect_events(model, name, rule, log.get_moment, upto, first=0)
        for name, rule in (("high", high), ("seen", seen))
    ]
    assert all(events)
    rows = read_outbox(table)
    assert {(row["event_id"], row["event_type"]) for row in rows} == set().union(*events)
