"""A table's commits and jobs, and a clock, for tests that need no service."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import Mirror, SourceTable, Vector
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.iterations import Claim, Iteration
from iscp_dagster.model.jobs import JobID
from iscp_dagster.sync.deployment import Deployment
from support.jobs.log_rows import complete, log_in_memory

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
FEED = {"delta.enableChangeDataFeed": "true"}


class Clock:
    """A clock that tests and sleepers move; each sleep runs the next call of `meanwhile`."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now
        self.slept: list[float] = []
        self.meanwhile: list[Callable[[], Any]] = []

    def __call__(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_(seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()


def no_spark() -> Any:
    pytest.fail("the runner asked for Spark")


def orders(folder: Path, **changes: Any) -> SourceTable:
    """Declare the table in `folder`, with indexes of two kinds unless `changes` has others."""
    indexes = [Mirror(priority=1), Vector("v", dimension=2)]
    options = {"tenant": "region", "path": str(folder / "orders"), "indexes": indexes}
    return SourceTable("shop.orders", key="id", **options | changes)


def in_memory(clock: Clock) -> Deployment:
    """Make a deployment with an ISCP log in memory and no service that answers."""
    return Deployment(
        endpoint=ClickHouseEndpoint.parse("http://127.0.0.1:9"),
        log=log_in_memory(clock=clock),
        spark=no_spark,
        lake="/nowhere",
        clock=clock,
    )


def make_variables(folder: Path) -> dict[str, str]:
    """Return the variables of a deployment whose services do not answer."""
    return {
        "ISCP_HOME": str(folder / "home"),
        "CLICKHOUSE_URL": "http://127.0.0.1:9",
        "SPARK_REMOTE": "sc://127.0.0.1:9",
        "ISCP_LOG_URL": f"sqlite:///{folder / 'log.sqlite'}",
        "ISCP_LAKE": str(folder / "lake"),
    }


def name_deployment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, str]:
    """Name a deployment whose services do not answer in the environment; return the variables."""
    environ = make_variables(folder)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def name_dead_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name an object store at a port that refuses every connection."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")


def commit(source: SourceTable, *tenants: str, mode: str = "append", **more: str) -> None:
    """Commit one row for each tenant (column `region`), with the columns of `more`."""
    ids = pa.array([1] * len(tenants), pa.int64())
    columns = {"id": ids, "region": pa.array(tenants, pa.string())}
    columns |= {name: [value] * len(tenants) for name, value in more.items()}
    options = {"mode": mode, "schema_mode": "merge", "configuration": FEED}
    write_deltalake(source.path, pa.table(columns), partition_by=["region"], **options)


def due(jobs: Jobs, source: SourceTable, tenant: str, name: JobID) -> Iteration:
    """Return an iteration of that job alone, up to the table's latest version."""
    job = jobs.get_job(tenant, name)
    return Iteration.from_jobs([job], jobs.deployment.make_delta_log(source).get_latest_moment())


def begin(
    jobs: Jobs, source: SourceTable, tenant: str = "eu", name: JobID | None = None, run: str = "run"
) -> Claim:
    """Have a run begin the iteration of `due`, by default of the first index."""
    first = JobID(db=source.database, table=source.table, job=source.indexes[0].name)
    iteration = due(jobs, source, tenant, name or first)
    (claim,) = jobs.deployment.log.claim_jobs(iteration, run, {})
    return claim


def finish(
    jobs: Jobs,
    source: SourceTable,
    tenant: str = "eu",
    name: JobID | None = None,
    run: str = "run",
    clock: Clock | None = None,
    **counts: int,
) -> None:
    """Have a run begin the iteration and complete it, three seconds later when `clock` is given."""
    claim = begin(jobs, source, tenant, name, run)
    if clock is not None:
        clock.pass_(3)
    complete(jobs.deployment.log, claim, claim.range.to, counts)


FIELDS = [
    {"name": name, "type": type_, "nullable": True, "metadata": {}}
    for name, type_ in (("tenant", "string"), ("id", "long"))
]
METADATA = {
    "metaData": {
        "id": "11111111-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
        "partitionColumns": ["tenant"],
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "createdTime": 0,
    }
}
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}


def write_commit(table: Path, version: int, changed: Iterable[str], seconds: float) -> None:
    """Write a commit to the log, at that time; its files, one for each tenant, are empty."""
    millis = int(seconds * 1000)
    actions: list[dict] = [{"commitInfo": {"timestamp": millis, "operation": "WRITE"}}]
    if version == 0:
        actions += [PROTOCOL, METADATA]
    for tenant in changed:
        path = f"tenant={tenant}/part-{version}.parquet"
        added = {"path": path, "partitionValues": {"tenant": tenant}, "size": 100}
        actions.append({"add": added | {"modificationTime": millis, "dataChange": True}})
        (table / path).parent.mkdir(parents=True, exist_ok=True)
        (table / path).touch()
    file = table / "_delta_log" / f"{version:020d}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, actions)))
    # A commit without its own time has its file's.
    os.utime(file, (seconds, seconds))
