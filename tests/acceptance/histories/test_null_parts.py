"""Null arrays, maps and structs, and rows without a vector, in every kind of index."""

import pytest

from iscp_dagster import Changes, Mirror, Vector, View
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.model.declared.linking.attach import index_of_view
from iscp_dagster.model.errors import SchemaError
from support.lake.delta_tables import Table, kinds

COLUMNS = "tenant STRING, id BIGINT, tags ARRAY<STRING>, m MAP<STRING, INT>, s STRUCT<x: INT>"
NOTHING = "INSERT INTO {t} VALUES ('a', 1, NULL, NULL, NULL), ('a', 2, array(), map(), struct(1))"


def test_images_have_null_parts_by_their_indexes_rules(spark_deployment, kept_spark):
    """Both images of an update from null, to null, and of a calculated column."""
    rules = [Changes(name=rule, nulls=rule) for rule in ("empty", "flag", "json")]
    table = Table.make(
        spark_deployment,
        *rules,
        columns=COLUMNS,
        properties="delta.enableChangeDataFeed = true, delta.enableInCommitTimestamps = true",
        writer=kept_spark,
    )
    calculated = {"twice": "IF(tags IS NULL, NULL, concat(tags, tags))"}
    view = View("seen", of=table.source, columns=calculated, nulls={"twice": "json"})
    table = table.with_indexes(*rules, index_of_view(view))
    table.sql(NOTHING)
    table.follow()
    empty = "tags = array(), m = map('x', NULL), s = named_struct('x', CAST(NULL AS INT))"
    table.sql(f"UPDATE {{t}} SET {empty} WHERE id = 1")
    table.sql("UPDATE {t} SET tags = NULL, m = NULL, s = NULL WHERE id = 2")
    assert set(kinds(table.follow())) == {ReadKind.TAIL}
    table.agreed()
    shown = "SELECT id, _image, {more} FROM {{{name}}} WHERE _change = 2 ORDER BY id, _image"

    def images(name, more):
        return table.query(shown.format(name=name, more=more))

    gone = {"x": None}
    assert images("empty", "tags, m, s") == [
        (1, 0, [], {}, gone),
        (1, 1, [], {"x": None}, gone),
        (2, 0, [], {}, {"x": 1}),
        (2, 1, [], {}, gone),
    ]
    nulls = [(1, 0, True, True, True), (1, 1, False, False, False)]
    nulls += [(2, image, *[bool(image)] * 3) for image in (0, 1)]
    assert images("flag", "tags_is_null, m_is_null, s_is_null") == nulls
    assert images("json", "tags, m, s") == [
        (1, 0, None, None, None),
        (1, 1, "[]", '{"x":null}', '{"x":null}'),
        (2, 0, "[]", "{}", '{"x":1}'),
        (2, 1, None, None, None),
    ]
    assert [row[2] for row in images("seen", "twice")] == [None, "[]", "[]", None]
    # What each change has of its own is the same by every rule.
    for name in ("empty", "flag", "json"):
        fields = images(name, "arraySort(_fields)")
        assert [list(row[2]) for row in fields] == [["m", "s", "tags"]] * 4, name
        assert (
            table.query(f"SELECT id FROM {table.view(table.source.get_index(name))} LIMIT 0") == []
        )


@pytest.mark.parametrize("vector", ["keyed", "appended"])
def test_rows_wait_in_a_vector_index_for_their_vectors(deployment, vector):
    appended = vector == "appended"
    index = Vector("v", dimension=2, metric="l2", append=appended)
    table = Table.make(deployment, index, key=() if appended else "id")
    table.insert(1)
    table.sql("INSERT INTO {t} VALUES ('a', 2, 'x', NULL), ('a', 3, 'x', array())")
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 4, 'x', NULL), ('b', 5, 'x', NULL)")
    table.follow()
    table.agreed()
    near = f"{table.view(index, '_nearest')}(tenant = 'a', query = [0, 0], k = 9)"
    assert table.query(f"SELECT id FROM {near}") == [(1,)]
    assert [list(v) for (v,) in table.query("SELECT v FROM {vector} ORDER BY id")] == [
        [1.0, 1.0],
        *[[]] * 4,
    ]
    if appended:
        return
    table.sql("UPDATE {t} SET v = array(id, 0.5) WHERE id IN (2, 4)")
    table.sql("UPDATE {t} SET v = NULL WHERE id = 1")
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.follow()
    table.check()
    assert table.query(f"SELECT id FROM {near}") == [(2,), (4,)]


def test_a_rule_for_a_column_that_is_not_there_stops_the_jobs(deployment):
    table = Table.make(deployment, Mirror(), nulls={"tagz": "json"})
    table.insert(1)
    failed = [each for each in table.follow() if isinstance(each, FailedStep)]
    assert [each.code for each in failed] == [SchemaError.code]
    assert "nulls names the column 'tagz'" in failed[0].message
    assert {job.status.message for job in table.jobs()} == {failed[0].message}
