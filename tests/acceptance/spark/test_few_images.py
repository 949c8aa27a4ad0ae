"""Image rows of a few changes that the run itself reads: those that Spark reads, of every type."""

from types import SimpleNamespace

import pytest

from iscp_dagster.delta.expressions import analyze_expressions
from iscp_dagster.delta.feedscan import plan_rows
from iscp_dagster.delta.filescan import TenantFilter
from iscp_dagster.delta.images import ViewRead, build_images, read_images
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.reader import TableSelection
from iscp_dagster.model.declared.images import ImageSource, Stage, TriggerConditions
from iscp_dagster.spark.session import get_shared_session
from support.lake.delta_tables import TYPES, typed_columns, typed_rows

MOST = 1_000_000
ODD = TYPES | {
    "f": ("FLOAT", "'NaN', '-0.0', 1.17e-38, NULL"),
    "d": ("DOUBLE", "'NaN', '-0.0', -0.1, NULL"),
    "far": ("DATE", "'0001-01-01', '9999-12-31', '1582-10-10', NULL"),
    "later": ("TIMESTAMP", "'0001-01-01 00:00:00', '9999-12-31 23:59:59.999999', NULL, NULL"),
    "`U per`": ("STRING", "'Ab', 'aB', '\\ufffd', NULL"),
}
VIEW = ImageSource(
    stages=(
        Stage(
            where="d IS NULL OR d = 0 OR NOT d < -0.05 OR i > 0",
            columns=(
                ("halved", "try_divide(dec, 2)"),
                ("told", "concat(`U per`, date_format(later, 'yyyy-MM-dd HH'), month(far))"),
                ("kept", "named_struct('m', mp, 't', nt, 'b', hex(bi))"),
            ),
        ),
    )
).replace_conditions(
    [
        TriggerConditions(name="isNaN", match="d > 1e300", unmatch="d = 0 OR s = ''"),
        TriggerConditions(name="late", match="ts > TIMESTAMP'1970-01-01 00:00:00' OR st.a = 1"),
        TriggerConditions(
            name="lower", match="lower(`U per`) = 'ab' AND bo", unmatch="array_size(ar) > 1"
        ),
    ]
)
NARROW = ImageSource(columns=("s", "mp", "d"))
BOTH = {"a", "é/%20"}


@pytest.fixture
def spark(spark_remote):
    return get_shared_session(spark_remote)


@pytest.fixture
def table(kept_spark, tmp_path):
    """A table whose rows of every type were inserted, changed, moved and deleted."""
    path = tmp_path / "odd"

    def sql(text):
        kept_spark.sql(text.replace("{t}", f"delta.`{path}`"))

    sql(
        f"CREATE TABLE {{t}} (tenant STRING, id BIGINT, {typed_columns(ODD)}) USING delta "
        "PARTITIONED BY (tenant) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableChangeDataFeed' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
    )
    sql(f"INSERT INTO {{t}} {rows('a', 0)} UNION ALL {rows('é/%20', 2)}")
    sql("UPDATE {t} SET d = -d, f = -f, mp = map('x', 1, 'y', NULL), nt = ts WHERE id < 4")
    sql("UPDATE {t} SET tenant = 'a', id = 10 + id WHERE tenant != 'a' AND id > 3")
    sql("ALTER TABLE {t} ADD COLUMNS (more STRING)")
    sql("UPDATE {t} SET more = s, s = 'given', `U per` = 'AB' WHERE id IN (1, 2, 14)")
    sql("DELETE FROM {t} WHERE id % 2 = 0")
    return SimpleNamespace(path=str(path), log=DeltaLog(str(path), "tenant"), sql=sql)


def rows(tenant, shift):
    """Return a query of four rows of that tenant, with ids from `shift`."""
    asked = typed_rows({name.strip("`"): each for name, each in ODD.items()}, f"'{tenant}'")
    asked = asked.replace("AS U per", "AS `U per`").replace("U per[id]", "`U per`[id]")
    return asked.replace(f"SELECT '{tenant}', id", f"SELECT '{tenant}', id + {shift}", 1)


def read_of(spark, table, image_source, tenants, version):
    fields = table.log.get_facts(version).fields
    types = {each.name: each.type for each in fields}
    selection = TableSelection(
        path=table.path,
        columns=(),
        keys=("id",),
        tenant_column="tenant",
        types=types,
        tenants=frozenset(tenants),
    )
    return ViewRead.from_schema(
        selection, fields, image_source, analyze_expressions(spark, "v", fields, image_source)
    )


def fed(table, read, after, upto):
    """Return how the log says that the range is read, which must be possible without Spark."""
    files = table.log.list_feed_files(after, upto, read.selection.tenants)
    feed = [(table.log.get_moment(version), file) for version, file in files]
    facts = table.log.get_facts(upto)
    selected = TenantFilter(column="tenant", tenants=read.selection.tenants)
    found = plan_rows(table.path, facts, feed, read.selection.output, selected)
    assert found is not None
    return found


def told(frame):
    """Return the rows and their types; NaN and -0.0 are told apart from what equals them."""
    found = frame.toArrow()
    types = [(each.name, str(each.type).replace(" not null", "")) for each in found.schema]
    return types, [repr(row) for row in found.to_pylist(maps_as_pydicts=None)]


def test_the_rows_are_those_that_spark_reads_whatever_their_types(spark, table):
    last, met = table.log.get_latest_moment().version, set()
    for image_source, tenants, after in ((VIEW, BOTH, 0), (NARROW, {"a"}, 1)):
        read = read_of(spark, table, image_source, tenants, last)
        ends = table.log.get_moment(after), table.log.get_moment(last)
        expected = told(read_images(spark, read, *ends))
        rows = fed(table, read, after, last)
        assert told(build_images(spark, read, rows.read_if_small(MOST))) == expected
        met |= {n for n in (1, 2, 3) for row in expected[1] if f"'_change': {n}," in row}
    assert met == {1, 2, 3}
    # The fourth commit adds a column and has no rows.
    assert not fed(table, read, 3, 4).files
    # Spark reads what is too much, and what is no text.
    read = read_of(spark, table, NARROW, BOTH, last)
    assert fed(table, read, 0, last).read_if_small(100) is None
    table.sql("UPDATE {t} SET ar = array(CAST(X'ff61' AS STRING)) WHERE id = 1")
    assert fed(table, read, last, last + 1).read_if_small(MOST) is None
