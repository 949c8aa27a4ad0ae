"""Changes indexes on real services: what entered, left or changed in a view, exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from iscp_dagster import Changes, Mirror, Trigger, View
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import ALL_TENANTS
from iscp_dagster.cli.jobs import json as job_json
from iscp_dagster.cli.jobs import show as job_show
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.assets.io_manager import build_outcome_metadata
from iscp_dagster.model import errors
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.images import IMAGE_COLUMNS, ChangeKind
from iscp_dagster.model.declared.linking.attach import index_of_view
from iscp_dagster.model.jobs import JobID
from iscp_dagster.spark.session import get_shared_session
from support.errors import assert_names, raises_naming
from support.lake.deals_table import TENANTS, Dealings, big, dealings, huge, seen
from support.lake.delta_tables import Table, deployment_at, kinds
from support.live.subscriber_thread import following
from support.spark.fake_spark import NearSpark
from support.workers.killable import CrashPoint, run_until_crash

BEGIN = 4
"""The version as of which the tests' histories begin."""


VIEWS = {"big": big, "huge": huge}


@dataclass
class Dealt:
    """The kept table, and its model."""

    path: str
    model: Dealings

    @property
    def last(self) -> int:
        """The last version before the gap."""
        return self.model.gap[0]

    def table(self, deployment: Any, *names: str) -> Table:
        """Declare it with these changes indexes."""
        table = Table.make(deployment, create=False, key="k", path=self.path)
        of_big = View("big", of=table.source, where="amount > 100", columns={"gross": GROSS})
        of_huge = View("huge", of=of_big, where="gross > 150", columns={"shout": "upper(note)"})
        known = {"big": index_of_view(of_big), "huge": index_of_view(of_huge)}
        return table.with_indexes(*(known[name] for name in names))


GROSS = "amount * 1.19"


@pytest.fixture(scope="module")
def dealt(spark_remote, tmp_path_factory):
    path = tmp_path_factory.mktemp("lake") / "dealings"
    spark = get_shared_session(spark_remote)

    def run(statement):
        spark.sql(statement.replace("{t}", f"delta.`{path}`")).collect()

    return Dealt(str(path), dealings(path, run))


def reached(table, *versions):
    """Run iterations of both tenants to these versions, one after the other; none may fail."""
    found = [table.run(table.iteration(*TENANTS, to=version)) for version in versions]
    assert [each for some in found for each in some if isinstance(each, FailedStep)] == []
    return found


def images_in(table, name, after=BEGIN):
    """Return the index's image rows after a version as the model writes them, in order."""
    view = table.view(table.source.get_index(name))
    client = table.deployment.endpoint.get_client()
    query = f"SELECT * FROM {view} WHERE _version > {after} ORDER BY tenant, _version, _ordinal"
    log, rows = table.deployment.make_delta_log(table.source), []
    for row in client.query(f"{query}, _image").named_results():
        assert row["_timestamp"] == log.get_moment(row["_version"]).at.replace(tzinfo=None)
        system = {"_version", "_timestamp", *IMAGE_COLUMNS}
        kept = {column: value for column, value in row.items() if column not in system}
        place = row["tenant"], row["_version"], row["_ordinal"], row["_image"]
        rows.append((*place, row["_change"], row["_fields"], kept))
    return rows


def modelled(model, name, upto):
    found = model.images(VIEWS[name], range(BEGIN + 1, upto + 1))
    return sorted(found, key=lambda row: row[:4])


def rows_in(table, name, suffix="", where=""):
    view = table.view(table.source.get_index(name), suffix)
    columns = "tenant, k" if suffix else "tenant, k, _change, _image, _version"
    return table.query(f"SELECT {columns} FROM {view}{where} ORDER BY ALL")


def keys_of(model, name, version):
    return sorted(seen(model.states[version], VIEWS[name]))


def test_a_run_that_dies_anywhere_leaves_the_rows_of_the_model(
    clickhouse_url, spark_remote, dealt, tmp_path
):
    """A subscriber is told each change once, in the order of commits."""
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    table = dealt.table(deployment, "huge")

    def live_and_die(to, when, method):
        run_until_crash(table, table.iteration(*TENANTS, to=to), CrashPoint(when, method))
        deployment.log.recover_run_jobs(["dead"])
        reached(table, to)
        assert images_in(table, "huge") == modelled(dealt.model, "huge", to)

    live_and_die(BEGIN, "before", "complete")
    base = keys_of(dealt.model, "huge", BEGIN)
    assert rows_in(table, "huge") == [(*key, 0, 1, BEGIN) for key in base]
    with following(deployment, table.source, "huge", snapshot=True) as follower:
        follower.await_messages(len(base))
        live_and_die(7, "after", "claim_jobs")
        live_and_die(dealt.last, "before", "complete")
        changes = {row[:3]: row for row in modelled(dealt.model, "huge", dealt.last)}
        follower.await_messages(len(base) + len(changes))
    assert {row[4] for row in changes.values()} == {1, 2, 3}
    first, told = follower.messages[: len(base)], follower.messages[len(base) :]
    assert [(each.data["tenant"], int(each.data["k"])) for each in first] == base
    for tenant in TENANTS:
        its = [each for each in told if each.data["tenant"] == tenant]
        places = [(tenant, each.timestamp.version, each.timestamp.ordinal) for each in its]
        assert places == sorted(place for place in changes if place[0] == tenant)
        for place, message in zip(places, its, strict=True):
            *_, change, fields, row = changes[place]
            assert message.operation == ChangeKind(change).name
            assert (int(message.data["k"]), list(message.fields)) == (row["k"], fields)
            moment = deployment.make_delta_log(table.source).get_moment(place[1])
            assert message.ts_timestamp == str(moment.micros * 1_000)
    for at in ((BEGIN + dealt.last) // 2, dealt.last):
        asked = rows_in(table, "huge", "_as_of", f"(version = {at})")
        assert asked == keys_of(dealt.model, "huge", at)


def test_a_gap_or_a_key_twice_begins_a_history_anew(
    clickhouse_url, spark_remote, dealt, tmp_path, capsys
):
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    table = dealt.table(deployment, "big")
    after, upto = dealt.model.gap
    _, outcomes = reached(table, after, upto)
    assert kinds(outcomes) == [ReadKind.SNAPSHOT] * 2
    told = f"versions {after + 1} to {upto}: the change data feed was off at version {after + 1}"
    assert {build_outcome_metadata(each, {})["gap"].text for each in outcomes} == {told}
    keys = keys_of(dealt.model, "big", upto)
    assert rows_in(table, "big") == [(*key, 0, 1, upto) for key in keys]
    for job in table.jobs():
        begun = get_consumer_kind(job.spec.detail.consumer.type).find_history_start(
            table.source, job, deployment
        )
        assert (begun.at.version, begun.gap) == (upto, (told,))
        assert job_json.describe_history_start(begun)["gap"] == told
        job_show.print_status([job], {}, {}, (), {job.key: begun})
    printed = " ".join(capsys.readouterr().out.split())
    assert f"changes since {upto} of" in printed
    assert f"gap {told}" in printed
    # Changes go on from there, until a tenant has a key twice, which waits alone.
    last = table.version
    twice, clean = last - 3, last - 2
    reached(table, twice - 1)
    expected = dealt.model.images(big, range(upto + 1, twice))
    assert expected
    assert images_in(table, "big", upto) == sorted(expected, key=lambda row: row[:4])
    assert [each.agrees for each in table.verdicts()] == [True, True]
    outcomes = {
        each.claim.key.tenant: each for each in table.run(table.iteration(*TENANTS, to=twice))
    }
    assert outcomes["acme"].code == errors.KeyColumnError.code
    assert f"key {{'k': {dealt.model.twin[1]}}} occurs in 2 rows" in outcomes["acme"].message
    assert outcomes["globex"].plan.kind is ReadKind.TAIL
    assert [row[1:5] for row in images_in(table, "big", twice - 1)] == [(twice, 0, 1, 1)]
    # It can be read again once the second row is gone, but nobody knows which one that was.
    (mended,) = (each for each in table.materialize("acme") if each.to.version >= clean)
    said = f"key {{'k': {dealt.model.twin[1]}}} was inserted while it existed"
    assert mended.gap.startswith(f"versions {twice} to {last}: ")
    assert said in mended.gap
    # The column that the table has gained is in both.
    assert [each.to.version for each in table.materialize("globex")] == [last]
    assert images_in(table, "big", clean)[-1][4:6] == (2, ["extra"])
    held = rows_in(table, "big", "_as_of", f"(version = {last})")
    assert held == keys_of(dealt.model, "big", last)
    # Another definition is another index.
    other = View("big", of=table.source, where="amount > 10", columns={"gross": GROSS})
    changed = table.with_indexes(index_of_view(other))
    with raises_naming(errors.SchemaError, "view"):
        store_of(changed, "big").ensure()
    jobs = Jobs(deployment=deployment, sources=[changed.source], cancel_runs=lambda _: None)
    name = JobID(db=table.source.database, table=table.source.table, job="big")
    assert jobs.rebuild_job(ALL_TENANTS, name) is True
    built = changed.run(changed.iteration(*TENANTS))
    assert [(each.plan.reason, each.gap) for each in built] == [("first synchronization", "")] * 2
    wider = seen(dealt.model.states[last], lambda row: row if (row["amount"] or 0) > 10 else None)
    assert rows_in(changed, "big") == [(*key, 0, 1, last) for key in sorted(wider)]
    assert len(wider) > len(held)


def store_of(table, name) -> IndexStore:
    (info,) = {j.spec.detail.consumer for j in table.jobs() if j.name.job == name}
    schema = table.deployment.make_delta_log(table.source).get_facts().fields
    return table.deployment.make_index_store(
        table.source, resolve_index(table.source, info), schema
    )


def test_what_cannot_be_followed_stops_only_changes(clickhouse_url, spark_remote, dealt, tmp_path):
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    without = Table.make(deployment, Mirror(), Changes(), writer=NearSpark())
    hot = Trigger("hot", on=without.source, match="id > 1")
    without = replace(without, source=replace(without.source, triggers=[hot]))
    without.insert(1, 2)
    outcomes = {each.claim.key.job_name: each for each in without.run(without.iteration("a"))}
    assert outcomes["mirror"].inserted == 2
    alter = f"ALTER TABLE delta.`{without.path}` SET TBLPROPERTIES "
    for job in ("changes", "hot"):
        assert outcomes[job].code == errors.SourceError.code
        assert f"{alter}('delta.enableInCommitTimestamps' = 'true')" in outcomes[job].message
    (tmp_path / "bad").mkdir()
    table = dealt.table(deployment_at(clickhouse_url, spark_remote, tmp_path / "bad"))
    bad = View("bad", of=table.source, where="amont > 100")
    table = table.with_indexes(index_of_view(bad), Changes(), Mirror())
    # Two triggers on what the changes index reads too, in one scan.
    matches = {"lost": "amont > 1", "zero": "k / (k - 3) > 1"}
    triggers = [Trigger(name, on=table.source, match=text) for name, text in matches.items()]
    table = replace(table, source=replace(table.source, triggers=triggers))
    found = table.run(table.iteration("globex", to=BEGIN))
    outcomes = {each.claim.key.job_name: each for each in found}
    assert outcomes["bad"].code == errors.ConfigError.code
    assert_names(outcomes["bad"].message, f"{table.source.name}/bad", "amont > 100", "amont")
    assert outcomes["zero"].code == errors.ReadError.code
    assert_names(outcomes["zero"].message, dealt.path, "zero", "[DIVIDE_BY_ZERO]")
    assert outcomes["lost"].code == errors.ConfigError.code
    assert_names(outcomes["lost"].message, "'lost'", "amont > 1", "amont")
    rows = len([key for key in dealt.model.states[BEGIN] if key[0] == "globex"])
    assert [outcomes[job].inserted for job in ("mirror", "changes")] == [rows, rows]
