"""How a range is read: by one task or several, and each tenant as changes or as a snapshot."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.tables.ddl import DEDUPLICATION_WINDOW
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.write.chunks import MOST_CHUNKS, MOST_TASKS, compute_chunks_per_task
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.batch import BatchAction, Range
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
from iscp_dagster.sync.ledger import load_ledger
from iscp_dagster.sync.reading.reader import (
    MOST_ROWS,
    MOST_TASKS_OF_IMAGES,
    SMALL_BYTES,
    SourceReader,
)
from iscp_dagster.sync.reading.requests import ReadRequest
from support.jobs.log_rows import complete
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


EVERYONE = frozenset(f"t{number}" for number in range(20))
EARLY = frozenset(f"t{number}" for number in range(10))
GONE = frozenset({"t3", "t4", "t17"})


class Fleet:
    """A table without a key whose index keeps dead letters; all jobs are at version 0."""

    def __init__(self, folder):
        index = Mirror(append=True, errors="dead_letter")
        path = str(folder / "events")
        self.source = SourceTable("shop.events", tenant="region", path=path, indexes=[index])
        self.deployment = in_memory(Clock())
        self.log = self.deployment.log
        self.commit()
        table_id, specs = self.delta_log.get_table_id(), make_job_specs(self.source, [index])
        self.log.register_many(make_new_jobs(table_id, EVERYONE, specs))
        iteration = self.make_iteration()
        for claim in self.log.claim_jobs(iteration, "first", {}):
            complete(self.log, claim, iteration.to, {})

    @property
    def delta_log(self):
        return self.deployment.make_delta_log(self.source)

    def commit(self, tenants=EVERYONE, **columns):
        commit(self.source, *tenants, **columns)

    def lose(self, version, tenants):
        """Remove the files that the commit wrote for these tenants, as VACUUM may."""
        for _, file in self.delta_log.list_feed_files(version - 1, version, tenants):
            Path(self.source.path, file.path).unlink()

    def make_reader(self, tenants=EVERYONE):
        return SourceReader(self.deployment, self.source, tenants, self.delta_log)

    def make_iteration(self, tenants=EVERYONE):
        jobs = [job for job in self.log.list_jobs() if job.key.tenant in tenants]
        return Iteration.from_jobs(jobs, self.delta_log.get_latest_moment())

    def begin(self, run, tenants=EVERYONE):
        """Begin an iteration up to the last commit, as a run does."""
        iteration, reader = self.make_iteration(tenants), self.make_reader(tenants)
        layout = reader.plan_layout(iteration.range)
        layouts = reader.plan_snapshot_layouts(iteration.range, layout)
        _, recall, _ = load_ledger(reader, iteration)
        return self.log.claim_jobs(iteration, run, layout, layouts=layouts, earlier=recall)

    def begin_in_dying_run(self, tenants=EVERYONE):
        self.begin("dies", tenants)
        self.log.recover_run_jobs({"dies"})

    def begin_next(self):
        """Begin an iteration; return the tenants by what is done first with their batches."""
        tenants = {}
        for claim in self.begin("next"):
            tenants.setdefault(claim.step.action, set()).add(claim.key.tenant)
        return tenants

    def plan(self, reader, upto):
        """Return the tenants by how they are read up to that version."""
        log = self.delta_log
        range_ = Range(from_=log.get_moment(0), to=log.get_moment(upto))
        plans = reader.plan_reads_by_tenant(range_)
        tenants = {plan.kind: tenants for plan, tenants in plans.items()}
        assert len(tenants) == len(plans)
        return tenants


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


SPLIT = {ReadKind.SNAPSHOT: GONE, ReadKind.TAIL: EVERYONE - GONE}


def test_tenants_whose_files_are_gone_are_read_together_and_the_others_as_changes(fleet):
    fleet.commit()
    fleet.commit({"t3"})
    fleet.lose(1, GONE - {"t3"})
    fleet.lose(2, {"t3"})
    assert fleet.plan(fleet.make_reader(), upto=2) == SPLIT


def test_an_index_is_queried_once_for_the_values_of_all_tenants_in_an_added_column(
    fleet, monkeypatch
):
    queries = []

    def find_filled_columns(_store, columns, tenants):
        queries.append((columns, tenants))
        return dict.fromkeys(GONE, "body")

    monkeypatch.setattr(IndexStore, "find_filled_columns", find_filled_columns)
    fleet.commit(body="words")
    (job, *_) = fleet.log.list_jobs()
    reader = replace(fleet.make_reader(), consumers=(job.spec.detail.consumer,))
    assert fleet.plan(reader, upto=1) == SPLIT
    assert queries == [(["body"], EVERYONE)]


def test_a_tenant_whose_files_are_gone_is_set_aside_unless_it_needs_a_snapshot_anyway(fleet):
    fleet.commit()
    fleet.begin_in_dying_run()
    fleet.commit()
    fleet.lose(1, GONE)
    fleet.lose(2, {"t3"})
    assert fleet.begin_next()[BatchAction.DEAD_LETTER] == GONE - {"t3"}


def test_a_tenant_whose_batch_was_a_snapshot_is_not_set_aside(fleet):
    fleet.commit()
    fleet.lose(1, GONE)
    fleet.begin_in_dying_run()
    fleet.commit()
    # By then the files of others are gone as well.
    fleet.lose(1, {"t5"})
    others = EVERYONE - {"t5"}
    assert fleet.begin_next() == {BatchAction.DEAD_LETTER: {"t5"}, BatchAction.REPLAY: others}


def test_each_batch_is_decided_by_the_files_of_its_own_range(fleet):
    fleet.commit()
    fleet.begin_in_dying_run(EARLY)
    fleet.commit()
    fleet.begin_in_dying_run(EVERYONE - EARLY)
    fleet.commit()
    fleet.lose(1, {"t3", "t17"})
    fleet.lose(2, {"t5", "t16"})
    # The batch of t5 ended before its second commit.
    assert fleet.begin_next()[BatchAction.DEAD_LETTER] == {"t3", "t16", "t17"}
