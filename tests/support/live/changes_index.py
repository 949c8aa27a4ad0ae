"""A changes index in ClickHouse and its jobs in an ISCP log, written by hand."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from iscp_dagster import SourceTable
from iscp_dagster.clickhouse.connect.quoting import quote_string
from iscp_dagster.clickhouse.kinds.changes import Changes
from iscp_dagster.clickhouse.tables.ddl import SETTINGS, IndexShape
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.joblog.iterations import Iteration, WrittenStep
from iscp_dagster.model.declared.images import IMAGE_FIELDS, ChangeKind
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.moment import Moment
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.live.service import build_image_reader
from support.jobs.log_rows import make_plain_spec

FIELDS = tuple(
    DeltaField(name=name, type=Primitive(type_), nullable=name == "value")
    for name, type_ in (("tenant", "string"), ("id", "integer"), ("value", "integer"))
)
COLUMNS = (
    *("tenant", "id", "value", "_change", "_image", "_fields", "_ordinal"),
    *("_version", "_timestamp", "_deleted"),
)
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def source_in(database):
    """A table with the changes index `big`, one key column and tenants."""
    indexes = [Changes(name="big")]
    return SourceTable(f"{database}.trades", key="id", tenant="tenant", indexes=indexes)


class ImageTable:
    """The tables of the index `big`."""

    def __init__(self, endpoint, database):
        self.endpoint, self.source = endpoint, source_in(database)
        self.client = endpoint.get_client()
        self.create()

    def shape(self, generation=0):
        return IndexShape(
            source=self.source,
            index=self.source.indexes[0],
            fields=[*FIELDS, *IMAGE_FIELDS],
            generation=generation,
        )

    def create(self, generation=0):
        """Make a generation, and the views unless they are there."""
        shape = self.shape(generation)
        for statement in shape.render_create_statements():
            self.client.command(statement, settings=SETTINGS)
        if not generation:
            for statement in shape.render_view_statements():
                self.client.command(statement)

    def drop(self):
        shape = self.shape()
        data = IndexGenerations(endpoint=self.endpoint, database=shape.database, view=shape.view)
        data.drop_index()

    @property
    def name(self):
        shape = self.shape()
        return shape.qualify_name(shape.rows)

    @property
    def images(self):
        (served,) = read_catalog([self.source], [self.endpoint], lambda *_: ()).changes.values()
        return build_image_reader(served)

    def insert(self, rows):
        """Insert (tenant, id, value, change, image, fields, ordinal, version)."""
        whole = [(*row, T0 + timedelta(seconds=row[-1]), 0) for row in rows]
        if whole:
            self.client.insert(self.name, whole, column_names=COLUMNS)

    def begin(self, tenant, version, rows):
        """Begin the tenant's history with (id, value) as of a version."""
        self.client.command(f"ALTER TABLE {self.name} DROP PARTITION {quote_string(tenant)}")
        base = [(tenant, key, value, 0, 1, [], 0, version) for key, value in rows]
        self.insert([(tenant, 0, None, -1, 0, [], 0, version), *base])

    def write(self, tenant, changes):
        """Insert (version, ordinal, key, operation, before, after)."""
        self.insert(row for change in changes for row in rows_of(tenant, *change))


def rows_of(tenant, version, ordinal, key, operation, before, after):
    fields = ["value"] if operation == ChangeKind.UPDATE else []
    for image, value in ((0, before), (1, after)):
        if value is not None:
            yield (tenant, key, value, int(operation), image, fields, ordinal, version)


NAME = JobID(db="live", table="trades", job="big")


def name_of(database):
    """Return the name of the index's jobs in that database."""
    return replace(NAME, db=database)


def register(log, *tenants, table_id="t-1", name=NAME):
    spec = make_plain_spec(name, "changes")
    jobs = [NewJob(tenant=each, name=name, table_id=table_id, spec=spec) for each in tenants]
    log.register_many(jobs)


def reach(log, version, *tenants, name=NAME):
    """Complete an iteration of each tenant's job up to a version."""
    for job in log.list_jobs(name=name, tenants=tenants):
        to = Moment(version, version * 1_000_000)
        for claim in log.claim_jobs(Iteration.from_jobs([job], to), "run", {}):
            log.complete([WrittenStep(claim=claim, to=to, counts={})])
