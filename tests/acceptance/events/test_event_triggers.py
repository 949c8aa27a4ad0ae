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
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
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


def expect_events(model, name, rule, moments, upto):
    """Return (event id, type) of each transition after the first iteration."""
    events = set()
    for tenant, k in {key for state in model.states for key in state}:
        active = False
        key = json.dumps([tenant, str(k)], separators=(",", ":"))
        for version in range(FIRST, upto + 1):
            now = bool(rule(model.states[version].get((tenant, k)), active=active))
            if now != active and (version > FIRST or name == "seen"):
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
    """Return the outcomes by job and tenant, and the messages of jobs that failed."""
    outcomes = table.run(table.iteration(*TENANTS, to=upto))
    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedStep)]
    done = [outcome for outcome in outcomes if outcome not in failed]
    messages = {outcome.claim.key.job_name: outcome.message for outcome in failed}
    return {(outcome.job_name, outcome.tenant): outcome for outcome in done}, messages


@pytest.fixture(scope="module")
def followed(clickhouse_url, spark_remote, tmp_path_factory):
    """The model, and a table that was followed in several iterations up to the gap."""
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path_factory.mktemp("events"))
    table = Table.make(deployment, create=False, key="k")
    model = dealings(Path(table.path), table.sql)
    table = replace(table, source=replace(table.source, triggers=triggers(table.source)))
    for upto in (FIRST, 9, model.gap[0]):
        assert run(table, upto)[1] == {}
    return model, table


def test_iterations_give_the_events_of_the_model_with_key_and_declared_columns(followed):
    model, table = followed
    moments = table.deployment.make_delta_log(table.source).get_moment
    for name, rule in (("high", high), ("seen", seen)):
        events = expect_events(model, name, rule, moments, model.gap[0])
        assert len(events) > 9
        rows = [row for row in read_outbox(table) if row["trigger_name"] == name]
        assert len(rows) == len(events)
        assert {(row["event_id"], row["event_type"]) for row in rows} == events
    bodies = [json.loads(row["body"]) for row in read_outbox(table)]
    of_high = [body for body in bodies if body["trigger_name"] == "high"]
    assert {tuple(body["data"]) for body in of_high} == {("tenant", "k", "gross")}
    matches = {body["data"]["gross"] for body in of_high if body["event_type"] == "MATCH"}
    assert matches == {"1071.0119"}


def test_a_gap_a_changed_condition_and_a_broken_trigger_give_no_event_and_are_shown(followed):
    model, table = followed
    events, (before, after) = len(read_outbox(table)), model.gap
    outcomes, messages = run(table, after)
    assert messages == {}
    assert len(read_outbox(table)) == events
    for tenant in TENANTS:
        metadata = build_outcome_metadata(outcomes["high", tenant], {})
        assert_names(metadata["gap"], f"{before + 1} to {after}")
        rows = [row for key, row in model.states[after].items() if key[0] == tenant]
        assert metadata["active"] >= sum(high(row, active=False) for row in rows)
        assert (metadata["matches"], metadata["unmatches"]) == (0, 0)
    # Another condition needs a snapshot, but only for its jobs; a broken one stops no other.
    first, second = table.source.triggers
    broken = [
        Trigger("astray", on=table.source, match="nowhere > 1"),
        Trigger("lacking", on=table.source, match="amount > 1", columns=["absent"]),
    ]
    changed = [replace(first, match="gross > 160"), second]
    table = replace(table, source=replace(table.source, triggers=[*changed, *broken]))
    log = table.deployment.make_delta_log(table.source)
    jobs = make_new_jobs(log.get_table_id(), TENANTS, make_job_specs(table.source, broken))
    moment = log.get_moment(after)
    table.deployment.log.register_many([replace(job, watermark=moment) for job in jobs])
    outcomes, messages = run(table, after + 1)
    assert messages.keys() == {"astray", "lacking"}
    assert_names(messages["astray"], "nowhere")
    assert_names(messages["lacking"], "'absent'")
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
    moved = keys_before ^ keys_after
    assert moved
    assert sorted(fired) == sorted(("seen", f'["{tenant}","{k}"]') for tenant, k in moved)
