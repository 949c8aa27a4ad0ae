"""Which changes one task reads itself, judged by the log's entries of their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from iscp_dagster.clickhouse.tables.ddl import DEDUPLICATION_WINDOW
from iscp_dagster.clickhouse.write.chunks import MOST_CHUNKS, MOST_TASKS, compute_chunks_per_task
from iscp_dagster.delta.log.commits import commit_name
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.sync.reading.reader import (
    MOST_ROWS,
    MOST_TASKS_OF_IMAGES,
    SMALL_BYTES,
    SourceReader,
)
from iscp_dagster.sync.reading.requests import ReadRequest
from support.jobs.one_table import Clock, commit, in_memory, orders
from support.spark.fake_spark import NearSpark

SAID = {"partitionValues": {"region": "eu"}, "extendedFileMetadata": True}
ADDED = {"partitionValues": {"region": "eu"}, "dataChange": True, "modificationTime": 1}


def rows(count):
    return json.dumps({"numRecords": count})


@pytest.mark.parametrize(
    ("removed", "direct"),
    [
        ([{"size": 10, "stats": rows(1)}], True),
        ([{"size": SMALL_BYTES + 1, "stats": rows(1)}], False),
        ([{"size": SMALL_BYTES // 2 + 1, "stats": rows(1)}] * 2, False),
        ([{"size": SMALL_BYTES}], False),
        ([{}], False),
        ([{"size": 0}], False),
        ([{"stats": rows(1_000)}], True),
        ([{"stats": rows(MOST_ROWS)}], False),
    ],
)
def test_one_task_reads_few_bytes_also_of_what_was_removed(tmp_path, removed, direct):
    source = orders(tmp_path)
    commit(source, "eu")
    actions = [
        {"remove": {"path": f"{n}.parquet", "dataChange": True, **SAID, **more}}
        for n, more in enumerate(removed)
    ]
    Path(source.path, commit_name(1)).write_text("\n".join(map(json.dumps, actions)))
    deployment = in_memory(Clock())
    delta_log = deployment.make_delta_log(source)
    found = SourceReader(deployment, source, frozenset({"eu"}), delta_log)
    range_ = Range(from_=found.delta_log.get_moment(0), to=found.delta_log.get_moment(1))
    selection = found._make_selection(["id", "region"], 1)
    assert found.plan_layout(range_)["partitions"] == 1
    assert (found._plan_feed(range_, selection) is not None) is direct


def written(folder, size):
    """Make a table whose second commit wrote so many bytes; return a reader and that range."""
    source = orders(folder)
    commit(source, "eu")
    actions = [{"add": {"path": "1.parquet", **ADDED, "size": size}}]
    Path(source.path, commit_name(1)).write_text("\n".join(map(json.dumps, actions)))
    deployment = in_memory(Clock())
    found = SourceReader(deployment, source, frozenset({"eu"}), deployment.make_delta_log(source))
    return found, Range(from_=found.delta_log.get_moment(0), to=found.delta_log.get_moment(1))


@pytest.mark.parametrize(
    ("size", "cores", "tasks"),
    [
        (SMALL_BYTES - 1, 64, 1),
        (SMALL_BYTES, 64, 2),
        (5 * SMALL_BYTES, 1, 2),
        (5 * SMALL_BYTES, 3, 3),
        (5 * SMALL_BYTES, 64, 5),
        (1_000 * SMALL_BYTES, 64, MOST_TASKS),
    ],
)
def test_changes_are_read_by_as_many_tasks_as_they_have_work_for_and_spark_cores(
    tmp_path, size, cores, tasks
):
    found, range_ = written(tmp_path, size)
    spark = NearSpark(cores=cores)
    found = replace(found, deployment=replace(found.deployment, spark=lambda: spark))
    assert found.plan_layout(range_)["partitions"] == tasks


def test_a_layout_that_does_not_say_is_read_alike_whatever_cores_spark_has(tmp_path):
    found, range_ = written(tmp_path, 5 * SMALL_BYTES)

    def away():
        raise UnavailableError("Spark is away.")

    layout = replace(found, deployment=replace(found.deployment, spark=away)).plan_layout(range_)
    assert "partitions" not in layout
    plan = ReadPlan(kind=ReadKind.TAIL, reason="")
    wanted = ReadRequest(plan=plan, range=range_, layout=layout)
    for cores in (1, 64):
        spark = NearSpark(cores=cores)
        again = replace(found, deployment=replace(found.deployment, spark=lambda s=spark: s))
        assert again._get_recorded_tasks(wanted) == 2


@pytest.mark.parametrize("tasks", range(1, MOST_TASKS + 1))
def test_all_tasks_together_write_no_more_chunks_than_clickhouse_remembers(tasks):
    assert tasks * compute_chunks_per_task(tasks) * 5 <= DEDUPLICATION_WINDOW
    assert MOST_TASKS_OF_IMAGES * MOST_CHUNKS <= DEDUPLICATION_WINDOW
