"""Event triggers on real services: each transition of the source once, whatever the cuts."""

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
    """Follow the first trigger; None: not in the view."""
    if row is None or row["amount"] is None or row["amount"] <= 100:
        return False
    gross = row["amount"] * Decimal("1.19")
    return gross > 500 or (active and gross >= 150)


def seen(row, *, active):
    del active
    return row is not None and row["amount"] is not None and row["amount"] > 100


def expected(model, name, rule, moments, upto, first=FIRST):
    """Return (event id, type) of every transition after the first iteration, up to `first`."""
    found = set()
    for tenant, k in {key for state in model.states for key in state}:
        active = False
        key = json.dumps([tenant, str(k)], separators=(",", ":"))
        for version in range(first, upto + 1):
            now = bool(rule(model.states[version].get((tenant, k)), active=active))
            if now != active and (version > first or name == "seen"):
                at = SourceTimestamp.from_micros(moments(version).micros, version=version)
                event_id = IdScheme().make_event_id(name, key, at)
                found.add((event_id, "MATCH" if now else "UNMATCH"))
            active = now
    return found


def outbox(table):
    with table.deployment.log.begin_read() as connection:
        found = connection.execute(sa.select(ISCP_OUTBOX).order_by(ISCP_OUTBOX.c.number))
        return [dict(row) for row in found.mappings()]


def run(table, upto):
    outcomes = table.run(table.iteration(*TENANTS, to=upto))
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    return {(each.job_name, each.tenant): each for each in outcomes}


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
        wanted = expected(model, name, rule, moments, model.gap[0])
        assert len(wanted) > 9
        for table in tables:
            found = [each for each in outbox(table) if each["trigger_name"] == name]
            assert len(found) == len(wanted)
            assert {(each["event_id"], each["event_type"]) for each in found} == wanted


def test_a_body_has_the_key_and_the_columns_of_the_view_that_were_asked_for(followed):
    _, (table, _) = followed
    bodies = [json.loads(each["body"]) for each in outbox(table)]
    high = [each for each in bodies if each["trigger_name"] == "high"]
    assert {tuple(each["data"]) for each in high} == {("tenant", "k", "gross")}
    assert {each["data"]["gross"] for each in high if each["event_type"] == "MATCH"} == {
        "1071.0119"
    }


def test_a_gap_and_then_a_changed_condition_give_no_event_and_are_shown(followed):
    model, (table, _) = followed
    events, (before, after) = len(outbox(table)), model.gap
    outcomes = run(table, after)
    assert len(outbox(table)) == events
    for tenant in TENANTS:
        metadata = build_outcome_metadata(outcomes["high", tenant], {})
        assert metadata["gap"].startswith(f"versions {before + 1} to {after}: ")
        held = [row for key, row in model.states[after].items() if key[0] == tenant]
        assert metadata["active"] >= sum(high(row, active=False) for row in held)
        assert (metadata["matches"], metadata["unmatches"]) == (0, 0)
    # Another condition needs a snapshot, for its own jobs alone; the other trigger goes on.
    first, second = table.source.triggers
    changed = [replace(first, match="gross > 160"), second]
    table = replace(table, source=replace(table.source, triggers=changed))
    outcomes = run(table, after + 1)
    kinds = {(each.job_name, each.plan.kind.value) for each in outcomes.values()}
    assert kinds == {("high", "snapshot"), ("seen", "tail")}
    why = f"versions {after + 1} to {after + 1}: the definition of trigger 'high' changed"
    assert {each.report.get("gap") for each in outcomes.values()} == {why, None}
    here, there = (
        {key for key, row in model.states[version].items() if seen(row, active=False)}
        for version in (after, after + 1)
    )
    fired = [(each["trigger_name"], each["event_key"]) for each in outbox(table)[events:]]
    assert fired
    assert sorted(fired) == sorted(("seen", f'["{t}","{k}"]') for t, k in here ^ there)


def test_what_cannot_be_evaluated_stops_its_own_trigger_and_newcomers_fire_from_their_first_commit(
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
    new = make_new_jobs(log.get_table_id(), TENANTS, make_job_specs(source, source.consumers))
    deployment.log.register_many([replace(each, watermark=log.get_moment(0)) for each in new])
    outcomes = table.run(table.iteration(*TENANTS, to=upto))
    failed = {
        each.claim.key.job_name: each.message for each in outcomes if isinstance(each, FailedStep)
    }
    assert failed.keys() == {"astray", "lacking"}
    assert "nowhere" in failed["astray"]
    assert "names 'absent', which" in failed["lacking"]
    found = {(each["event_id"], each["event_type"]) for each in outbox(table)}
    wanted = [
        expected(model, name, rule, log.get_moment, upto, first=0)
        for name, rule in (("high", high), ("seen", seen))
    ]
    assert all(wanted)
    assert found == set().union(*wanted)
