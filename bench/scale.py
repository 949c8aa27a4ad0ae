"""An idle look over very many tables, tenants and jobs: its time, and the size of the cursor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from bench.detection import settle_cursor
from bench.report import BenchReport
from iscp_dagster import FullText, Mirror, SourceTable
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.sql.rows import to_row
from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
from iscp_dagster.planning.runner import Runner
from iscp_dagster.sync.deployment import Deployment
from sql_transactions.engine import begin_transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INDEXES = (Mirror(), Mirror(name="copy"), FullText("name"))
LOOK = "scale: one idle look"
NEW = "scale: the first look of a runner without a cursor"
FIRST = "scale: the first look after a restart"
AT_ONCE = 10_000
MOST_SECONDS, MOST_BYTES = 1.0, 100_000
"""Limits for an idle look and the cursor, at a thousand tables of a thousand tenants."""


def measure(folder: Path, report: BenchReport, tables: int, tenants: int) -> None:
    """Time looks at tables of one commit and `tenants` tenants, each with three jobs in step.

    The commits are real, but the files that they name do not exist: a look never opens one.
    Neither Spark nor ClickHouse is used, so neither needs to run.
    """
    sources = [_write_table(folder / "lake", number, tenants) for number in range(tables)]
    log = SqlLog(f"sqlite:///{folder / 'scale.sqlite'}")
    log.ensure()
    deployment = Deployment(
        endpoint=ClickHouseEndpoint.parse("http://127.0.0.1:9"),
        log=log,
        spark=_refuse_spark,
        lake=str(folder),
    )
    _fill(deployment, log, sources, tenants)
    # In Dagster a first look stops after some seconds; with this clock it runs to the end.
    runner = Runner(deployment, sources, monotonic=lambda: 0.0)
    with report.measure_time(NEW):
        look = runner.look(None)
    assert not look.dispatches, look.dispatches[0]
    cursor = settle_cursor(runner, look.cursor)
    for _ in range(3):
        runner = Runner(deployment, sources, monotonic=lambda: 0.0)
        with report.measure_time(FIRST):
            look = runner.look(cursor)
        assert not look.dispatches
    for _ in range(5):
        with report.measure_time(LOOK):
            idle = runner.look(cursor)
        assert not idle.dispatches
    jobs = tables * tenants * len(INDEXES)
    report.add_fact(
        "scale: tables x tenants x jobs", f"{tables} x {tenants} x {len(INDEXES)} = {jobs:,}"
    )
    report.add_fact(NEW, f"{report.compute_median(NEW):.1f} s")
    report.add_fact(FIRST, f"{report.compute_median(FIRST):.3f} s   target: under 10 s")
    report.add_fact(LOOK, f"{report.compute_median(LOOK):.3f} s   target: under 1 s")
    report.add_fact("scale: cursor", f"{len(cursor):,} bytes   target: under 100,000")
    assert report.compute_median(LOOK) < MOST_SECONDS, "an idle look takes too long"
    assert len(cursor) < MOST_BYTES, "the cursor is too large"


def _write_table(folder: Path, number: int, tenants: int) -> SourceTable:
    path = folder / f"t{number}"
    log = path / "_delta_log"
    log.mkdir(parents=True)
    now = time.time_ns() // 1_000_000
    schema = {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in (("tenant", "string"), ("id", "long"), ("name", "string"))
        ],
    }
    metadata = {
        "id": f"{number:08d}-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": ["tenant"],
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "createdTime": now,
    }
    actions = [
        {"commitInfo": {"timestamp": now, "operation": "WRITE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
        {"metaData": metadata},
        *(
            {
                "add": {
                    "path": f"tenant=t{n}/part-0.parquet",
                    "partitionValues": {"tenant": f"t{n}"},
                    "size": 1000,
                    "modificationTime": now,
                    "dataChange": True,
                }
            }
            for n in range(tenants)
        ),
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return SourceTable(
        f"scale.t{number}", key="id", tenant="tenant", path=str(path), indexes=INDEXES
    )


def _refuse_spark() -> SparkSession:
    raise AssertionError("a look asked for Spark")


def _fill(deployment: Deployment, log: SqlLog, sources: list[SourceTable], tenants: int) -> None:
    """Write the jobs as their iterations would have left them, but without history."""
    rows = _build_rows(deployment, sources, tenants)
    insert = sa.insert(ISCP_LOG)
    while batch := list(islice(rows, AT_ONCE)):
        with begin_transaction(log.engine, writes=True) as connection:
            connection.execute(insert, batch)


def _build_rows(
    deployment: Deployment, sources: list[SourceTable], tenants: int
) -> Iterator[dict[str, object]]:
    now = get_utc_now()
    tenants = [f"t{n}" for n in range(tenants)]
    for source in sources:
        log = deployment.make_delta_log(source)
        moment: Moment = log.get_latest_moment()
        specs = make_job_specs(source, INDEXES)
        for row in make_new_jobs(log.get_table_id(), tenants, specs):
            job = lifecycle.register_job(row, registration=1, seq=0, now=now)
            values = to_row(job)
            yield {**values, "watermark": str(moment), "watermark_version": moment.version}
