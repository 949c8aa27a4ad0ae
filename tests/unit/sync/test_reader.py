"""Which changes one task reads itself, judged by the log's entries of their files."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from iscp_dagster.clickhouse.tables.ddl import DEDUPLICATION_WINDOW
from iscp_dagster.clickhouse.write.chunks import MOST_CHUNKS, MOST_TASKS, compute_chunks_per_task
from iscp_dagster.delta.log.commits import format_commit_name
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

FILE = {"partitionValues": {"region": "eu"}, "dataChange": True}


def rows(count):
    return json.dumps({"numRecords": count})


def make_reader(folder, *actions):
    """Make a table with a second commit of these actions; return a reader and that range."""
    source = orders(folder)
    commit(source, "eu")
    Path(source.path, format_commit_name(1)).write_text("\n".join(map(json.dumps, actions)))
    deployment = in_memory(Clock())
    log = deployment.make_delta_log(source)
    range_ = Range(from_=log.get_moment(0), to=log.get_moment(1))
    return SourceReader(deployment, source, frozenset({"eu"}), log), range_


def make_reader_of_added(folder, size):
    """Return a reader of a range that added so many bytes."""
    added = {"path": "1.parquet", **FILE, "modificationTime": 1, "size": size}
    return make_reader(folder, {"add": added})


def use_spark(reader, connect):
    return replace(reader, deployment=replace(reader.deployment, spark=connect))


@pytest.mark.parametrize(
    ("removed", "direct"),
    [
        ([{"size": 10, "stats": rows(1)}], True),
        ([{"size": SMALL_BYTES + 1, "stats": rows(1)}], False),
        ([{"size": SMALL_BYTES // 2 + 1, "stats": rows(1)}] * 2, False),
        ([{}], False),
        ([{"size": 0}], False),
        ([{"stats": rows(1_000)}], True),
        ([{"stats": rows(MOST_ROWS)}], False),
    ],
)
def test_one_task_reads_few_bytes_also_of_removed_files(tmp_path, removed, direct):
    actions = [
        {"remove": {"path": f"{n}.parquet", **FILE, "extendedFileMetadata": True, **more}}
        for n, more in enumerate(removed)
    ]
    reader, range_ = make_reader(tmp_path, *actions)
    selection = reader._make_selection(["id", "region"], 1)
    assert reader.plan_layout(range_)["partitions"] == 1
    assert (reader._plan_feed(range_, selection) is not None) is direct


@pytest.mark.parametrize(
    ("size", "cores", "tasks"),
    [
        (SMALL_BYTES - 1, 64, 1),
        (SMALL_BYTES, 64, 2),
        (5 * SMALL_BYTES, 3, 3),
        (5 * SMALL_BYTES, 64, 5),
        (1_000 * SMALL_BYTES, 64, MOST_TASKS),
    ],
)
def test_changes_are_read_by_as_many_tasks_as_there_is_work_and_as_spark_has_cores(
    tmp_path, size, cores, tasks
):
    reader, range_ = make_reader_of_added(tmp_path, size)
    layout = use_spark(reader, lambda: NearSpark(cores=cores)).plan_layout(range_)
    assert layout["partitions"] == tasks


def test_a_layout_without_a_number_of_tasks_is_read_alike_whatever_cores_spark_has(tmp_path):
    reader, range_ = make_reader_of_added(tmp_path, 5 * SMALL_BYTES)

    def fail():
        raise UnavailableError("Spark is away.")

    layout = use_spark(reader, fail).plan_layout(range_)
    assert "partitions" not in layout
    plan = ReadPlan(kind=ReadKind.TAIL, reason="")
    request = ReadRequest(plan=plan, range=range_, layout=layout)
    for cores in (1, 64):
        reader = use_spark(reader, partial(NearSpark, cores=cores))
        assert reader._get_recorded_tasks(request) == 2


@pytest.mark.parametrize("tasks", range(1, MOST_TASKS + 1))
def test_all_tasks_together_write_no_more_chunks_than_clickhouse_remembers(tasks):
    assert tasks * compute_chunks_per_task(tasks) * 5 <= DEDUPLICATION_WINDOW
    assert MOST_TASKS_OF_IMAGES * MOST_CHUNKS <= DEDUPLICATION_WINDOW
