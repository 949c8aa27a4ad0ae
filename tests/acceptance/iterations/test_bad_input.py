"""Bad input: one clear error with culprit and remedy, and no loss of what was served."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors.exceptions.connect import SparkConnectException

from iscp_dagster import FullText, Mirror, Vector, View
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import RefusedRowsError
from iscp_dagster.delta import reader
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.declared.linking.attach import index_of_view
from iscp_dagster.model.errors import (
    IscpError,
    KeyColumnError,
    ReadError,
    SchemaError,
    SourceError,
    UnavailableError,
)
from iscp_dagster.model.states import JobState
from iscp_dagster.spark.session import get_shared_session
from support.errors import assert_names
from support.lake.delta_tables import FEED, Table, kinds
from support.services.stack import find_free_port


@pytest.fixture(params=["deployment", pytest.param("spark_deployment", marks=pytest.mark.soak)])
def either(request):
    """Return a deployment for a remedy in SQL, which Spark itself must understand too."""
    return request.getfixturevalue(request.param)


def refused(table):
    """Follow a table that fails with one error; the log has it, and the job waits."""
    try:
        outcomes = table.follow()
    except IscpError as error:
        code, message = error.code, str(error)
    else:
        failed = [each for each in outcomes if isinstance(each, FailedStep)]
        assert failed, outcomes
        code, message = failed[0].code, failed[0].message
    in_error = [job for job in table.jobs() if job.status.code]
    assert {(job.status.code, job.status.message) for job in in_error} == {(code, message)}
    state = JobState.ERROR if code >= 10_000 else JobState.COMPLETED
    assert {job.state for job in in_error} == {state}
    assert table.look().dispatches == [] or code < 10_000
    return code, message


def mended(table):
    """Materialize by hand, as a person does after repairing the source."""
    assert not [each for each in table.materialize() if isinstance(each, FailedStep)]
    table.check()


def test_a_key_column_that_is_missing(deployment):
    table = Table.make(deployment, Mirror(), key=("id", "nr"))
    table.insert(1)
    code, message = refused(table)
    assert code == KeyColumnError.code
    assert_names(message, "'nr'", table.path)
    mended(replace(table, source=replace(table.source, key="id")))


def test_a_key_that_is_null_or_repeated_at_first_and_in_a_change(deployment):
    """A tenant's first synchronization reads a snapshot."""
    table = Table.make(deployment, Mirror())
    for tenant, bad in (("a", "NULL"), ("b", "2"), ("a", "NULL"), ("a", "7")):
        begun = tenant in {job.key.tenant for job in table.jobs()}
        ids = [bad, bad] if bad != "NULL" else [bad]
        some = ", ".join(f"('{tenant}', {id_}, 'x', array(1, 2))" for id_ in ids)
        table.sql(f"INSERT INTO {{t}} VALUES {some}")
        if not begun:
            table.insert(1, tenant=tenant)
        code, message = refused(table)
        assert code == KeyColumnError.code
        if bad == "NULL":
            assert_names(message, "'id'", "null", {"id": None})
        else:
            assert f"key {{'id': {bad}}} occurs in 2 rows" in message
        if begun:
            assert table.query(f"SELECT id FROM {{mirror}} WHERE tenant = '{tenant}'") == [(1,)]
        where = "id IS NULL" if bad == "NULL" else f"id = {bad}"
        table.sql(f"DELETE FROM {{t}} WHERE {where}")
        mended(table)


def test_a_key_that_comes_again_in_a_later_iteration(deployment):
    """Whether a row comes with it or another row takes it on."""
    table = Table.make(deployment, Mirror(), FullText("name"))
    table.insert(1, 2)
    table.follow()
    table.insert(1, name="twice")
    code, message = refused(table)
    assert code == KeyColumnError.code
    assert "key {'id': 1} occurs in 2 rows" in message
    served = [(1, "some words 1"), (2, "some words 2")]
    assert table.query("SELECT id, name FROM {mirror} ORDER BY id") == served
    table.sql("DELETE FROM {t} WHERE name = 'some words 1'")
    mended(table)
    assert table.query("SELECT name FROM {mirror} WHERE id = 1") == [("twice 1",)]
    # It may be put right before the next iteration.
    table.sql("UPDATE {t} SET name = 'old' WHERE id = 1")
    table.insert(1, name="again")
    table.sql("DELETE FROM {t} WHERE name = 'old'")
    outcomes = table.follow()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT] * 2
    assert "was inserted while it existed" in outcomes[0].plan.reason
    assert table.query("SELECT name FROM {mirror} WHERE id = 1") == [("again 1",)]
    table.check()
    # One that is deleted before it comes again is no second row.
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.insert(1, name="anew")
    table.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    assert kinds(table.follow()) == [ReadKind.TAIL] * 2
    table.check()
    table.sql("UPDATE {t} SET id = 1 WHERE id = 2")
    code, message = refused(table)
    assert code == KeyColumnError.code
    assert "key {'id': 1} occurs in 2 rows" in message


def test_a_path_without_a_table(deployment):
    table = Table.make(deployment, Mirror(), create=False)
    look = table.look()
    (problem,) = look.problems
    assert_names(str(problem), table.source.name, table.path)
    table.create()
    table.insert(1)
    table.follow()
    table.check()


def test_a_table_without_a_change_feed(either):
    table = Table.make(either, Mirror(), properties="delta.enableChangeDataFeed = false")
    table.insert(1)
    code, message = refused(table)
    assert code == SourceError.code
    remedy = message[message.index("ALTER TABLE") :]
    assert remedy.endswith("SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    table.sql(remedy)
    mended(table)


def without_clickhouse(deployment):
    nowhere = f"http://me:hidden@127.0.0.1:{find_free_port()}"
    return replace(deployment, endpoint=ClickHouseEndpoint.parse(nowhere))


def without_spark(deployment):
    nowhere = f"sc://127.0.0.1:{find_free_port()}/;token=hidden"
    return replace(deployment, spark=lambda: get_shared_session(nowhere))


@pytest.mark.parametrize(
    ("without", "said", "remedy"),
    [
        (without_clickhouse, r"ClickHouse at http://127\.0\.0\.1:\d+ did not", "CLICKHOUSE_URL"),
        (without_spark, r"Spark at sc://127\.0\.0\.1:\d+ does not answer", "SPARK_REMOTE"),
    ],
)
def test_a_service_that_is_not_there(deployment, without, said, remedy):
    table = Table.make(deployment, Mirror())
    table.insert(1)
    table.follow()
    table.insert(2)
    code, message = refused(replace(table, deployment=without(deployment)))
    assert code == UnavailableError.code
    assert re.match(said, message)
    (job,) = table.jobs()
    assert job.state is JobState.COMPLETED
    assert f"Start it (`iscp up`), or set {remedy}" in job.status.message
    assert "hidden" not in job.status.message
    mended(table)


@pytest.mark.parametrize("errors", ["stop", "dead_letter"])
def test_a_row_that_the_server_refuses_is_mended_by_deleting_it(deployment, errors):
    """The delete has the row's values, which would be refused again."""
    table = Table.make(deployment, Mirror(errors=errors), columns="tenant STRING, id BIGINT, x INT")
    table.sql("INSERT INTO {t} VALUES ('a', 1, 1), ('a', 2, 2), ('b', 1, 1)")
    table.follow()
    rows = table.view(table.source.indexes[0], "__rows")
    deployment.endpoint.get_client().command(f"ALTER TABLE {rows} ADD CONSTRAINT pos CHECK x > 0")
    table.sql("INSERT INTO {t} VALUES ('a', 3, -1)")
    table.sql("UPDATE {t} SET x = -1 WHERE tenant = 'a' AND id = 2")
    table.sql("INSERT INTO {t} VALUES ('b', 2, 1)")
    if errors == "stop":
        code, message = refused(table)
        assert (code, "row {'id': 2} is refused" in message) == (RefusedRowsError.code, True)
    else:
        assert not [each for each in table.follow() if isinstance(each, FailedStep)]
    table.sql("DELETE FROM {t} WHERE x = -1")
    mended(table)


def test_a_vector_that_is_set_aside_holds_up_nobody(deployment):
    table = Table.make(deployment, Vector("v", dimension=2, errors="dead_letter"))
    table.insert(1)
    table.follow()
    table.sql(
        "INSERT INTO {t} VALUES ('a', 2, 'x', array('NaN', 1.0)), "
        "('a', 3, 'x', array(1.0, 1.0)), ('a', 4, 'x', array('Infinity', 1.0))"
    )
    assert not [each for each in table.follow() if isinstance(each, FailedStep)]
    (held,) = table.query("SELECT groupArray(id) FROM (SELECT id FROM {vector} ORDER BY id)")
    assert list(held[0]) == [1, 3]
    table.sql("DELETE FROM {t} WHERE id IN (2, 4)")
    mended(table)


def test_null_arrays_maps_and_structs(deployment):
    """Every index goes on, whatever its rule; each agrees with its source by that rule."""
    rules = [Mirror(name=rule, nulls=rule) for rule in ("empty", "flag", "json")]
    columns = "tenant STRING, id BIGINT, tags ARRAY<STRING>, m MAP<STRING, INT>"
    table = Table.make(deployment, *rules, columns=columns)
    table.sql("INSERT INTO {t} VALUES ('a', 1, NULL, map('x', NULL)), ('b', 1, array('x'), NULL)")
    table.follow()
    table.check()
    table.sql("ALTER TABLE {t} ADD COLUMNS (ship ARRAY<INT>)")
    table.sql("INSERT INTO {t} VALUES ('a', 2, array(NULL), NULL, array(7, NULL))")
    table.sql("UPDATE {t} SET tags = NULL, ship = NULL WHERE tenant = 'b'")
    table.follow()
    table.check()
    rows = "SELECT id, tags, ship, {more} FROM {{{rule}}} WHERE tenant = 'a' ORDER BY id"
    flags = "tags_is_null, m_is_null, ship_is_null"
    assert table.query(rows.format(rule="flag", more=flags)) == [
        (1, [], [], True, False, True),
        (2, [None], [7, None], False, True, False),
    ]
    assert table.query(rows.format(rule="json", more="m")) == [
        (1, None, None, '{"x":null}'),
        (2, "[null]", "[7,null]", None),
    ]
    # Of a struct that the source gains, earlier rows have nothing, also without a snapshot.
    type_ = pa.struct({"street": pa.string(), "floors": pa.list_(pa.int32())})
    place = pa.array([{"street": "s", "floors": None}], type_)
    more = pa.table({"tenant": ["a"], "id": [3], "place": place})
    write_deltalake(table.path, more, mode="append", schema_mode="merge")
    assert set(kinds(table.materialize())) == {ReadKind.TAIL}
    table.check()
    rows = "SELECT {more} FROM {{{rule}}} WHERE tenant = 'a' ORDER BY id"
    parts = "place.street, place.floors, place_is_null"
    nothing = (None, [], True)
    found = table.query(rows.format(rule="flag", more=parts))
    assert found == [nothing, nothing, ("s", [], False)]
    texts = table.query(rows.format(rule="json", more="place"))
    assert texts == [(None,), (None,), ('{"street":"s","floors":null}',)]


def test_an_array_that_is_null_and_refused(deployment):
    """It may be that of an earlier row, whose column the source has gained since."""
    table = Table.make(deployment, Mirror(nulls="refuse"))
    table.insert(1)
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 2, 'x', NULL)")
    code, message = refused(table)
    assert code == SchemaError.code
    assert_names(message, "'v'", {"id": 2})
    table.sql("UPDATE {t} SET v = array() WHERE id = 2")
    mended(table)
    table.sql("ALTER TABLE {t} ADD COLUMNS (n ARRAY<INT>)")
    table.sql("INSERT INTO {t} VALUES ('a', 3, 'x', array(1, 2), array(1))")
    code, message = refused(table)
    assert code == SchemaError.code
    assert_names(message, "'n'", "null")
    table.sql("UPDATE {t} SET n = array() WHERE id < 3")
    outcomes = table.materialize()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT]
    table.check()


def test_a_tenant_that_is_not_the_partition(either):
    table = Table.make(either, Mirror(), create=False)
    table.sql(
        "CREATE TABLE {t} (tenant STRING, id BIGINT, day INT) USING delta PARTITIONED BY (day) "
        f"TBLPROPERTIES ({FEED})"
    )
    table.sql("INSERT INTO {t} VALUES ('a', 1, 2)")
    (problem,) = table.look().problems
    assert_names(problem.message, "'tenant'", "day")
    table.sql(problem.message[problem.message.index("CREATE OR REPLACE TABLE") :])
    table.follow()
    assert table.query("SELECT tenant, id, day FROM {mirror}") == [("a", 1, 2)]


def test_a_row_without_a_tenant_holds_up_no_other(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1)
    table.follow()
    table.sql("INSERT INTO {t} VALUES (NULL, 2, 'x', array(1, 2)), ('a', 3, 'x', array(1, 2))")
    table.insert(4, tenant="new")
    table.follow()
    assert table.query("SELECT id FROM {mirror} ORDER BY id") == [(1,), (3,), (4,)]
    assert [each.agrees for each in table.verdicts()] == [True, True]
    (problem,) = table.look().problems
    assert problem.facts == {"rows_without_tenant": 1}
    deployment.spark().sql(problem.message[problem.message.index("DELETE FROM") :]).collect()
    table.follow()
    assert table.look().problems == []
    table.check()


@pytest.mark.soak
def test_deletion_vectors_that_are_too_large_for_the_feed(spark_deployment):
    """Delta hands them to the feed's readers as one text of at most 64 KiB.

    An index is built again; a view's history begins anew, after a gap.
    """
    properties = f"{FEED}, delta.enableDeletionVectors = true"
    columns = "tenant STRING, id BIGINT"
    table = Table.make(spark_deployment, columns=columns, properties=properties)
    few = View("few", of=table.source, where="id % 1000 = 0")
    table = table.with_indexes(Mirror(), index_of_view(few))
    table.sql("INSERT INTO {t} SELECT /*+ REPARTITION(1) */ 'a', id FROM range(800000)")
    table.sql("DELETE FROM {t} WHERE pmod(hash(id), 2) = 0")
    table.follow()
    table.sql("DELETE FROM {t} WHERE pmod(hash(id, 1), 2) = 0")
    version = table.version
    outcomes = table.follow()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT] * 2
    assert all("too large" in each.plan.reason for each in outcomes)
    live = table.sql("SELECT count(*), sum(id) FROM {t}")
    assert table.query("SELECT count(), sum(id) FROM {mirror}") == [tuple(live[0])]
    (gap,) = (each.gap for each in outcomes if each.gap)
    assert re.match(rf"versions {version} to {version}: .* too large", gap)
    live = table.sql("SELECT count(*), sum(id) FROM {t} WHERE id % 1000 = 0")
    rows = f"SELECT count(), sum(id) FROM {{few}} WHERE _change = 0 AND _version = {version}"
    assert table.query(rows) == [tuple(live[0])]
    table.sql("INSERT INTO {t} VALUES ('a', 1000000)")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    changes = f"SELECT _change, id FROM {{few}} WHERE _version > {version}"
    assert table.query(changes) == [(1, 1_000_000)]


@pytest.mark.parametrize("number", [1, 3])
def test_whatever_else_spark_cannot_read_of_changes(deployment, monkeypatch, number):
    """A snapshot is read instead; where it cannot be read either, its error stops the job."""
    table = Table.make(deployment, Mirror())
    for tenant in SEVERAL[:number]:
        table.insert(1, tenant=tenant)
    table.follow()
    exception = "UTFDataFormatException" if number == 1 else "SomeException"

    def fail(*_args, **_options):
        with wrap_spark_errors(table.path):
            raise SparkConnectException(f"java.io.{exception}: so it is")

    monkeypatch.setattr("iscp_dagster.delta.feedscan.plan_feed", fail)
    monkeypatch.setattr("iscp_dagster.delta.reader.read_changes", fail)
    for tenant in SEVERAL[:number]:
        table.insert(2, tenant=tenant)
    outcomes = table.follow()
    assert kinds(outcomes) == [ReadKind.SNAPSHOT] * number
    if number == 1:
        assert "its deletion vectors are too large" in outcomes[0].plan.reason
    table.check()
    exception = "SomeException"
    monkeypatch.setattr("iscp_dagster.delta.filescan.plan_tasks", fail)
    monkeypatch.setattr("iscp_dagster.delta.reader.read_snapshot", fail)
    table.insert(3)
    code, message = refused(table)
    assert (code, "so it is" in message) == (ReadError.code, True)


def test_what_spark_cannot_read_of_one_tenant_makes_it_alone_be_read_whole(deployment, monkeypatch):
    table = Table.make(deployment, Mirror())
    for number in (1, 2):
        for tenant in SEVERAL:
            table.insert(number, tenant=tenant)
        if number == 1:
            table.follow()
    read_changes = reader.read_changes

    def fail_for_the_first(spark, selection, *args, **options):
        if SEVERAL[0] in selection.tenants:
            raise ReadError("so it is")
        return read_changes(spark, selection, *args, **options)

    monkeypatch.setattr("iscp_dagster.delta.feedscan.plan_feed", lambda *_, **__: None)
    monkeypatch.setattr("iscp_dagster.delta.reader.read_changes", fail_for_the_first)
    assert {outcome.tenant: outcome.plan.kind for outcome in table.follow()} == {
        "a": ReadKind.SNAPSHOT,
        "b": ReadKind.TAIL,
        "c": ReadKind.TAIL,
    }
    table.check()


SEVERAL = ("a", "b", "c")
