"""A range with one layout always gives the same chunks, byte for byte, however Spark reads it."""

import pyarrow as pa
import pytest

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.write.chunks import cut_chunks, hash_rows
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.model.batch import Range
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.reading.requests import ReadRequest
from support.lake.delta_tables import Table
from support.spark.fake_spark import NearSpark

LAYOUT = {"rows_per_chunk": 7, "partitions": 2}
COLUMNS = ("tenant", "id", "name", "v")
OTHERWISE = {
    "spark.sql.shuffle.partitions": "13",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    # Many small reads.
    "spark.sql.files.maxPartitionBytes": "4096",
    "spark.sql.files.openCostInBytes": "0",
}


@pytest.fixture
def deployment(spark_deployment):
    return spark_deployment


def chunked(table, *others):
    """Return (task, number, digest) of each chunk of the tenant, read together with `others`."""
    append = not table.source.keys

    def cut(batches):
        """Cut chunks in an executor; local, since only a local function is sent by value."""
        from pyspark import TaskContext

        task = TaskContext.get().partitionId()
        cuts = cut_chunks(batches, 7, apart="tenant" if append else None)
        mine = [chunk for chunk in cuts if chunk["tenant"][0].as_py() == "a"]
        for number, chunk in enumerate(mine):
            found = {"task": [task], "number": [number], "digest": [hash_rows(chunk)]}
            yield pa.RecordBatch.from_pydict(found)

    reader = SourceReader(
        table.deployment,
        table.source,
        frozenset({"a", *others}),
        table.deployment.make_delta_log(table.source),
    )
    log = reader.delta_log
    range_ = Range(from_=log.get_moment(1), to=log.get_moment(5))
    (plan,) = reader.plan_reads_by_tenant(range_)
    assert plan.kind is ReadKind.TAIL
    wanted = ReadRequest(plan=plan, range=range_, layout=LAYOUT)
    frame = reader.make_frame(table.deployment.spark(), wanted, COLUMNS, through_spark=True).frame
    found = frame.mapInArrow(cut, "task long, number long, digest string").collect()
    return sorted(tuple(row) for row in found)


@pytest.fixture(params=["keyed", "append-only"])
def table(deployment, request):
    """Make five commits of some hundred changes, most of them of the tenant, without Spark."""
    append = request.param == "append-only"
    made = {"key": () if append else "id", "writer": NearSpark()}
    found = Table.make(deployment, Mirror(append=append), **made)
    found.insert(*range(40))
    for first in (100, 200):
        found.insert(*range(first, first + 60))
        found.insert(*range(5), tenant="b")
    if not append:
        found.sql("UPDATE {t} SET name = concat(name, '!') WHERE tenant = 'a' AND id % 3 = 0")
    else:
        # Equal rows, as an append-only table may have them.
        found.insert(*range(60))
    return found


def test_chunks_are_the_same_whatever_spark_does(table):
    first = chunked(table)
    assert {task for task, _, _ in first} == {0, 1}
    assert len(first) > 10
    conf = table.deployment.spark().conf
    before = {key: conf.get(key) for key in OTHERWISE}
    table.sql("OPTIMIZE {t} ZORDER BY (name)")
    for key, value in OTHERWISE.items():
        conf.set(key, value)
    try:
        assert chunked(table) == first
    finally:
        for key, value in before.items():
            conf.set(key, value)
    if not table.source.keys:
        assert chunked(table, "b") == first, "in other company"
