"""The measured table, and the deployment that reads it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp_dagster import Index, Mirror, SourceTable
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.interpreter import iterate
from iscp_dagster.sync.iteration.outcomes import RowDelivery

TENANTS = 4
SELECT = f"""
SELECT id, concat('tenant-', id % {TENANTS}) AS tenant,
       concat('customer ', lpad(cast(id * 7919 AS string), 24, 'x')) AS name,
       id * 1.25 AS amount,
       concat('note ', lpad(hex(id * 104729), 20, '0')) AS note,
       timestamp_micros(1700000000000000 + id) AS at
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the table is made: extra columns and properties, and statements that then change it."""

    name: str
    columns: str = ""
    properties: str = ""
    statement_after: str = ""
    kept_fraction: float = 1.0
    """The fraction of the rows that is left."""


PLAIN = Shape(name="plain")


class BenchTable:
    """A Delta table of about 100 bytes a row in `folder`, and an ISCP log of its own."""

    def __init__(
        self, environ: Mapping[str, str], folder: Path, rows: int, shape: Shape = PLAIN
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.shape = shape
        log = f"sqlite:///{folder / 'log.sqlite'}"
        self.deployment: Deployment = open_deployment({**environ, "ISCP_LOG_URL": log})
        self.folder = folder
        self.rows = rows
        self.database = f"bench_{secrets.token_hex(4)}"
        self.path = str(folder / "source")
        self._make()

    def _make(self) -> None:
        spark = self.deployment.spark()
        frame = spark.range(0, self.rows, 1, 4).createOrReplaceTempView("bench_ids")
        del frame
        rows = f"{SELECT}{self.shape.columns} FROM bench_ids"
        schema = spark.sql(rows).schema
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        spark.sql(
            f"CREATE TABLE delta.`{self.path}` ({columns}) USING delta PARTITIONED BY (tenant) "
            f"TBLPROPERTIES (delta.enableChangeDataFeed = true{self.shape.properties}, "
            "delta.enableInCommitTimestamps = true)"
        )
        spark.sql(f"INSERT INTO delta.`{self.path}` {rows}")
        if self.shape.statement_after:
            spark.sql(self.shape.statement_after.format(t=f"delta.`{self.path}`")).collect()
            self.rows = int(self.rows * self.shape.kept_fraction)

    def declare_source(self, *indexes: Index) -> SourceTable:
        """Declare the table under a name of its own, so that its index tables are fresh."""
        name = f"{self.database}.t{secrets.token_hex(4)}"
        return SourceTable(name, key="id", tenant="tenant", path=self.path, indexes=indexes)

    def synchronize(self, source: SourceTable) -> int:
        """Run one iteration of all tenants and indexes; return the number of rows delivered."""
        deployment = self.deployment
        log = deployment.make_delta_log(source)
        latest, table_id = log.get_latest_moment(), log.get_table_id()
        tenants = log.list_tenants()
        deployment.log.register_many(
            make_new_jobs(table_id, tenants, make_job_specs(source, source.indexes))
        )
        names = {index.name for index in source.indexes}
        jobs = [
            job for job in deployment.log.list_jobs(table_id=table_id) if job.key.job_name in names
        ]
        iteration = Iteration(
            table_id=table_id,
            tenants=frozenset(tenants),
            jobs=tuple(job.key for job in jobs),
            from_=min(job.watermark for job in jobs),
            to=latest,
        )
        rows = 0
        for outcome in iterate(
            deployment, source, iteration, run_id=secrets.token_hex(4), delta_log=log
        ):
            if not isinstance(outcome, RowDelivery):
                raise RuntimeError(outcome.message)  # noqa: TRY004 - not about types
            rows += outcome.inserted + outcome.deleted
        return rows

    def unregister_jobs(self, source: SourceTable) -> None:
        """Unregister the jobs, so that another declaration of the table can register its own."""
        from iscp_dagster.planning.job_specs import make_job_name

        for index in source.indexes:
            for job in self.deployment.log.list_jobs():
                self.deployment.log.unregister(job.key.tenant, make_job_name(source, index))

    def make_peer_table(self) -> tuple[str, IndexShape]:
        """Make an empty table of the same shape for a peer; return its qualified name and shape."""
        source = self.declare_source(Mirror())
        fields = self.deployment.make_delta_log(source).get_facts().fields
        store = self.deployment.make_index_store(source, source.indexes[0], fields)
        store.ensure()
        return store.shape.qualify_name(store.shape.rows), store.shape

    def count(self, table: str) -> int:
        result = self.deployment.endpoint.get_client().query(f"SELECT count() FROM {table} FINAL")
        return int(result.result_rows[0][0])

    def run_command(self, sql: str, **settings: Any) -> None:
        self.deployment.endpoint.get_client().command(sql, settings=settings)

    def clean(self) -> None:
        self.run_command(f"DROP DATABASE IF EXISTS {self.database} SYNC")
        shutil.rmtree(self.path, ignore_errors=True)
