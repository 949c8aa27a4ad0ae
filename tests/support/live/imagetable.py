"""A changes index in ClickHouse and its jobs in an ISCP log, written by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import ClassVar

from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.events.changes import Operation
from iscp_dagster.joblog.iterations import Done, Iteration
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.serve.columns import column
from iscp_dagster.serve.live.images import Images

SYSTEM = (
    "`_change` Int8, `_image` Int8, `_fields` Array(String), `_ordinal` Int64, "
    "`_version` UInt64, `_timestamp` DateTime64(6, 'UTC'), `_deleted` UInt8"
)
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


class ImageTable:
    """The table of a view `big` of `shop.trades`, with one key column and a tenant or none."""

    columns: ClassVar = {"tenant": "String", "id": "Int32", "value": "Nullable(Int32)"}

    def __init__(self, endpoint, database, *, view="trades_big"):
        self.endpoint, self.database, self.view = endpoint, database, view
        self.client = endpoint.client()
        self.client.command(f"CREATE DATABASE IF NOT EXISTS {ident(database)}")
        self.create()

    def create(self, generation=0):
        columns = ", ".join(f"{ident(name)} {type_}" for name, type_ in self.columns.items())
        self.client.command(
            f"CREATE TABLE {self.name(generation)} ({columns}, {SYSTEM}) "
            "ENGINE = ReplacingMergeTree(`_version`, `_deleted`) PARTITION BY tenant "
            "ORDER BY (tenant, id, `_version`, `_image`)"
        )

    def name(self, generation=0):
        return ident(self.database, f"{self.view}__rows{f'_{generation}' if generation else ''}")

    @property
    def images(self):
        found = [column(name, parsed(type_)) for name, type_ in self.columns.items()]
        return Images(
            endpoint=self.endpoint,
            database=self.database,
            view=self.view,
            columns=found,
            keys=("id",),
            types={"tenant": "String", "id": "Int32"},
            tenant="tenant",
        )

    def show(self):
        """Make the view that `catalog` looks for."""
        self.client.command(
            f"CREATE OR REPLACE VIEW {ident(self.database, self.view)} AS "
            f"SELECT * EXCEPT `_deleted` FROM {self.name()} FINAL WHERE `_change` >= 0"
        )

    def insert(self, rows):
        """Insert (tenant, id, value, change, image, fields, ordinal, version)."""
        whole = [(*row, T0 + timedelta(seconds=row[-1]), 0) for row in rows]
        if whole:
            self.client.insert(self.name(), whole)

    def begin(self, tenant, version, rows):
        """Begin the tenant's history with (id, value) as of a version."""
        self.client.command(f"ALTER TABLE {self.name()} DROP PARTITION {text(tenant)}")
        base = [(tenant, key, value, 0, 1, [], 0, version) for key, value in rows]
        self.insert([(tenant, 0, None, -1, 0, [], 0, version), *base])

    def write(self, tenant, changes):
        """Insert (version, ordinal, key, operation, before, after)."""
        self.insert(row for change in changes for row in images_of(tenant, *change))


def images_of(tenant, version, ordinal, key, operation, before, after):
    fields = ["value"] if operation == Operation.UPDATE else []
    for image, value in ((0, before), (1, after)):
        if value is not None:
            yield (tenant, key, value, int(operation), image, fields, ordinal, version)


NAME = JobID(db="live", table="trades", job="big")


def register(log, *tenants, table_id="t-1"):
    consumer = ConsumerInfo(type="changes", db=NAME.db, table=NAME.table, job=NAME.job)
    spec = JobSpec(detail=IterationDetail(consumer=consumer))
    log.register_many(
        [NewJob(tenant=each, name=NAME, table_id=table_id, spec=spec) for each in tenants]
    )


def reach(log, version, *tenants):
    """Complete an iteration of each tenant's job up to a version."""
    for job in log.jobs(name=NAME, tenants=tenants):
        to = Moment(version, version * 1_000_000)
        for claim in log.begin(Iteration.of([job], to), "run", {}):
            log.complete([Done(claim=claim, to=to, counts={})])
