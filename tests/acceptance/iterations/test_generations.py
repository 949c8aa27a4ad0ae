"""A changed index is built beside the served one, and replaces it whole."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.api.jobs import ALL_TENANTS, Jobs
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError, SchemaError, WaitError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.writing.serving import find_unserved, serve_all
from iscp_dagster.upkeep.maintenance import delete_garbage, find_garbage
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import fail
from support.lake.delta_tables import Table, one_by_one

WIDER = SpecUpdate(columns=("name", "v"))


@pytest.fixture
def table(deployment):
    """Two tenants with an index of one column, in step."""
    found = Table.make(deployment, Mirror(columns=["name"]))
    found.insert(1)
    found.insert(2, tenant="b")
    found.follow()
    return found


def api(table):
    return Jobs(deployment=table.deployment, sources=[table.source], cancel_runs=lambda _: None)


def mirror(table, name="mirror"):
    return JobID(db=table.source.database, table=table.source.table, job=name)


def data(table):
    view = f"{table.source.table}_mirror"
    endpoint = table.deployment.endpoint
    return IndexGenerations(endpoint=endpoint, database=table.source.database, view=view)


def build_one(table):
    """Run the due iteration for its first tenant alone, drop the rest; return that tenant."""
    (due,) = table.look().dispatches
    tenant, keys = min(due.iteration.group_by_tenant().items())
    first = replace(due.iteration, tenants=frozenset({tenant}), jobs=tuple(keys))
    table.run(first, queued_as=due.name)
    table.deployment.log.recover_run_jobs([due.name])
    return tenant


def columns(table):
    query = "SELECT name FROM system.columns WHERE database = {d:String} AND table = {t:String}"
    found = table.query(query, d=table.source.database, t=f"{table.source.table}_mirror")
    return [name for (name,) in found]


def test_other_columns_are_served_when_every_tenant_has_them(table):
    """A commit is not searchable before what has it is served."""
    jobs = api(table)
    assert jobs.wait(table.source.name, timeout=0) == table.version
    assert jobs.update_job_spec(ALL_TENANTS, mirror(table), WIDER) is True
    tenant = build_one(table)
    with raises_naming(WaitError, "rebuilt"):
        jobs.wait(table.source.name, tenant=tenant, timeout=0)
    assert columns(table) == ["tenant", "id", "name"]
    assert table.query("SELECT count() FROM {mirror}") == [(2,)]
    assert data(table).find_served_generation() == 0
    assert find_unserved(table.deployment, table.jobs()) == {mirror(table)}
    # The new tables agree with their source, although readers do not see them yet.
    (verdict,) = table.verdicts()
    assert (verdict.agrees, verdict.rows) == (True, 1)
    table.follow()
    assert jobs.wait(table.source.name, timeout=0) == table.version
    assert columns(table) == ["tenant", "id", "name", "v"]
    assert data(table).find_served_generation() == 1
    assert find_unserved(table.deployment, table.jobs()) == frozenset()
    assert set(data(table).list_tables().values()) == {1}
    table.check()
    table.sql("UPDATE {t} SET name = 'other' WHERE id = 1")
    table.follow()
    table.check()


def test_tenants_that_come_one_after_the_other_do_not_hold_up_the_new_generation(table):
    api(table).update_job_spec(ALL_TENANTS, mirror(table), WIDER)
    first = table.look().dispatches
    table.insert(3, tenant="c")
    last = table.look().dispatches
    assert table.deployment.log.find_unbuilt_tenants(mirror(table)) == {"a", "b", "c"}
    for due in first:
        table.run(due.iteration, queued_as=due.name)
    # Tenant c was not served before, and is not yet.
    assert table.deployment.log.find_unbuilt_tenants(mirror(table)) == {"c"}
    assert data(table).find_served_generation() == 1
    for due in last:
        table.run(due.iteration, queued_as=due.name)
    generations = {job.spec.detail.consumer.generation for job in table.jobs()}
    assert (len(table.jobs()), generations) == (3, {1})
    table.check()


def test_a_type_that_holds_other_values_stops_until_the_index_is_built_anew(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2)
    table.follow()
    columns = {"tenant": ["a", "a"], "id": [1, 2], "name": [[1], [2]], "v": [[1.0], [2.0]]}
    write_deltalake(table.path, pa.table(columns), mode="overwrite", schema_mode="overwrite")
    table.follow()
    (job,) = table.jobs()
    assert (job.state, job.status.code) == (JobState.ERROR, SchemaError.code)
    assert_names(job.status.message, "'name'", "Array(Nullable(Int64))")
    remedy = f"iscp job rebuild {table.source.name}/mirror"
    assert remedy in job.status.message
    assert table.query("SELECT id, name FROM {mirror} ORDER BY id")[0] == (1, "some words 1")
    assert api(table).rebuild_job(ALL_TENANTS, mirror(table)) is True
    table.follow()
    assert table.query("SELECT id, name FROM {mirror} ORDER BY id") == [(1, [1]), (2, [2])]
    table.check()


def test_a_rebuild_has_the_columns_that_the_table_has_gained_whatever_its_siblings_do(deployment):
    """Another run writes one, and a rebuild has failed before."""
    old = Table.make(deployment, Mirror(columns=["name"]), FullText("name"))
    old.insert(1)
    old.insert(2, tenant="b")
    old.follow()
    before, log = old.version, deployment.log
    old.sql("ALTER TABLE {t} ADD COLUMNS (prio INT)")
    table = old.with_indexes(Mirror(columns=["name", "prio"]), FullText("name"))
    texts = [job for job in table.jobs() if job.key.job_name == "text"]
    delta_log = deployment.make_delta_log(table.source)
    log.claim_jobs(Iteration.from_jobs(texts, delta_log.get_latest_moment()), "another run", {})
    assert api(table).rebuild_job(ALL_TENANTS, mirror(table)) is True
    mirrors = [job for job in table.jobs() if job.key.job_name == "mirror"]
    past = Iteration.from_jobs(mirrors, delta_log.get_moment(before))
    assert {each.code for each in table.run(past)} == {ConfigError.code}
    api(table).rebuild_job(ALL_TENANTS, mirror(table))
    table.follow()
    assert columns(table) == ["tenant", "id", "name", "prio"]
    log.recover_run_jobs(["another run"])
    table.follow()
    table.sql("UPDATE {t} SET prio = 5 WHERE id = 2")
    table.follow()
    assert table.query("SELECT id, prio FROM {mirror} ORDER BY id") == [(1, None), (2, 5)]
    table.check()


def test_an_index_that_is_declared_otherwise_stops_until_it_is_built_anew(deployment):
    """Also as another kind."""
    table = Table.make(deployment, Mirror(name="mirror"))
    table.insert(1)
    table.follow()
    words = table.with_indexes(FullText("name", name="mirror"))
    words.insert(2)
    words.follow()
    (job,) = words.jobs()
    assert_names(job.status.message, "text", "mirror")
    assert api(words).rebuild_job(ALL_TENANTS, mirror(words)) is True
    words.follow()
    assert words.query("SELECT id FROM {mirror} WHERE hasAllTokens(name, 'words 2')") == [(2,)]
    words.check()
    trigrams = table.with_indexes(FullText("name", name="mirror", tokenizer="ngrams(3)"))
    trigrams.insert(3)
    trigrams.follow()
    (job,) = trigrams.jobs()
    assert_names(job.status.message, "tokenizer", "'splitByNonAlpha'", "'ngrams(3)'")
    assert trigrams.query("SELECT count() FROM {mirror}") == [(2,)]
    api(trigrams).rebuild_job(ALL_TENANTS, mirror(trigrams))
    trigrams.follow()
    found = trigrams.query("SELECT count() FROM {mirror} WHERE hasAllTokens(name, 'wor')")
    assert found == [(3,)]


def test_one_tenant_of_several_is_built_anew_in_its_place(table):
    """It has no columns of its own."""
    table.query(f"TRUNCATE TABLE {table.view(table.source.indexes[0], '__rows')}")
    jobs = api(table)
    assert jobs.rebuild_job("a", mirror(table)) is True
    table.follow()
    assert data(table).find_served_generation() == 0
    assert [each.tenant for each in table.verdicts() if each.agrees] == ["a"]
    with raises_naming(ConfigError, "mirror"):
        jobs.update_job_spec("a", mirror(table), WIDER)
    table.insert(9, tenant="c")
    (info, _) = (job.spec.detail.consumer for job in table.jobs())
    spec = JobSpec(detail=IterationDetail(consumer=replace(info, columns=("v",))))
    with raises_naming(ConfigError, "mirror", "v"):
        jobs.register_job("c", mirror(table), spec)
    jobs.unregister_job("b", mirror(table))
    assert jobs.update_job_spec("a", mirror(table), WIDER) is True


def test_what_a_tenant_built_in_its_place_has_lost_comes_again(table):
    """Its next changes repeat earlier ones, and would repeat their tokens if those were not new."""
    two = replace(table.source, indexes=[*table.source.indexes, Mirror(name="other")])
    both = replace(table, source=two)
    both.follow()
    both.insert(7)
    both.follow()
    assert api(both).rebuild_job("a", mirror(both)) is True
    # From the start up to the other job's earlier watermark, then on by the change feed.
    log = both.deployment.make_delta_log(two)
    iteration = replace(
        both.iteration("a"),
        jobs=(next(job.key for job in both.jobs() if job.watermark == START),),
        from_=START,
        to=log.get_moment(both.version - 1),
    )
    both.run(iteration)
    assert both.query("SELECT id FROM {mirror} WHERE tenant = 'a'") == [(1,)]
    both.follow()
    assert both.query("SELECT id FROM {mirror} WHERE tenant = 'a' ORDER BY id") == [(1,), (7,)]
    both.check()


def test_what_an_interrupted_take_over_or_an_earlier_version_left_is_put_right_within_the_hour(
    deployment, monkeypatch
):
    table = Table.make(deployment, Vector("v", dimension=2, name="mirror"))
    table.insert(1)
    table.follow()
    real = IndexStore._run_statement

    class DiedError(Exception):
        """As a run that is killed."""

    def die(*_):
        raise DiedError

    def run(self, statement, tenant=None, **settings):
        if "CREATE OR REPLACE VIEW" in statement and "_nearest" not in statement:
            raise DiedError
        return real(self, statement, tenant, **settings)

    def read_nearest():
        query = (
            "SELECT as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}"
        )
        place = {"d": table.source.database, "t": f"{table.source.table}_mirror_nearest"}
        return table.query(query, **place)[0][0]

    deaths = (IndexGenerations, "drop_before", die), (IndexStore, "_run_statement", run)
    for generation, (owner, name, replacement) in enumerate(deaths, 1):
        api(table).rebuild_job(ALL_TENANTS, mirror(table))
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, replacement)
            with pytest.raises(DiedError):
                table.follow()
        assert generation - 1 in data(table).list_tables().values()
        serve_all(deployment, [table.source])
        assert data(table).find_served_generation() == generation
        assert set(data(table).list_tables().values()) == {generation}
        assert f"mirror__rows_{generation}" in read_nearest()
        table.check()
    # Views that an earlier version made.
    made, view = read_nearest(), f"{table.source.database}.{table.source.table}_mirror"
    client = deployment.endpoint.get_client()
    client.command(f"CREATE OR REPLACE VIEW {view}_nearest AS SELECT id FROM {view}__rows_2 FINAL")
    client.command(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {view}__rows_2")
    assert serve_all(deployment, [table.source]).problems == []
    assert read_nearest() == made
    table.check()


def test_an_error_of_the_consumer_before_does_not_stop_the_one_that_comes(deployment):
    """The job is running with the impossible consumer when it is told to rebuild."""
    table = Table.make(deployment, FullText("name", name="mirror"))
    table.insert(1)
    table.follow()
    other = table.with_indexes(FullText("name", name="mirror", tokenizer="ngrams(3)"))
    other.insert(2)
    due = other.look().dispatches[0]
    found = one_by_one(deployment, other.source, due.iteration, run_id="r", queued_as=due.name)
    (claim,) = deployment.log.claim_jobs(due.iteration, "r", {}, queued_as=due.name)
    api(other).rebuild_job(ALL_TENANTS, mirror(other))
    fail(deployment.log, claim, SchemaError.code, "as before")
    found.close()
    (job,) = other.jobs()
    assert (job.state, job.watermark) == (JobState.COMPLETED, START)
    other.follow()
    other.check()


def test_tables_of_every_generation_go_with_the_last_job(table):
    jobs = api(table)
    jobs.update_job_spec(ALL_TENANTS, mirror(table), WIDER)
    build_one(table)
    assert set(data(table).list_tables().values()) == {0, 1}
    jobs.unregister_job(ALL_TENANTS, mirror(table))
    delete_garbage(
        table.deployment,
        [table.source],
        find_garbage(table.deployment, [table.source], timedelta(hours=-1)),
    )
    assert data(table).list_tables() == {}
