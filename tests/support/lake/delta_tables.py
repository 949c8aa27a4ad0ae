"""Delta source tables made through Spark, and a deployment of real services, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iscp_dagster import SourceTable
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.delta.spark_errors import _list_error_classes
from iscp_dagster.joblog.iterations import FailedStep, Iteration
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location.assets.iterations import Iterations
from iscp_dagster.model.declared.tables import Index
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import Job
from iscp_dagster.planning.job_specs import make_job_specs, make_new_jobs
from iscp_dagster.planning.joining import split_iteration
from iscp_dagster.planning.runner import LookResult, Runner
from iscp_dagster.spark import quoting
from iscp_dagster.spark.session import create_private_session, get_shared_session
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.interpreter import Interpreter
from iscp_dagster.sync.iteration.commands import (
    Command,
    IndexServed,
    IterationEvent,
    PlaceRows,
    ReturnOutcomes,
)
from iscp_dagster.sync.iteration.machine import IterationState, handle_event
from iscp_dagster.sync.iteration.outcomes import Outcome, RowDelivery
from iscp_dagster.sync.ledger import BatchLedger
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.writing.writer import IndexWriter
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify_indexes import IndexVerdict, compare_or_raise
from support.spark.fake_spark import NearSpark

FEED = "delta.enableChangeDataFeed = true, delta.enableInCommitTimestamps = true"
COLUMNS = "tenant STRING, id BIGINT, name STRING, v ARRAY<FLOAT>"
NUMBERS = itertools.count()
TYPES = {
    # name: type, four values
    "s": ("STRING", "'', 'é', '\\u0000x', NULL"),
    "by": ("TINYINT", "-128, 127, 0, NULL"),
    "sh": ("SMALLINT", "-32768, 32767, 0, NULL"),
    "i": ("INT", "-2147483648, 2147483647, 0, NULL"),
    "l": ("BIGINT", "-9223372036854775808, 9223372036854775807, 0, NULL"),
    "f": ("FLOAT", "'NaN', '-Infinity', 1.17e-38, NULL"),
    "d": ("DOUBLE", "'NaN', 'Infinity', -0.1, NULL"),
    "dec": ("DECIMAL(38, 10)", "-9999999999999999999999999999.9999999999, 0.0000000001, 0, NULL"),
    "bo": ("BOOLEAN", "true, false, true, NULL"),
    "bi": ("BINARY", "X'00ff', X'', X'80', NULL"),
    "da": ("DATE", "'1900-01-01', '2299-12-31', '1970-01-01', NULL"),
    "ts": (
        "TIMESTAMP",
        "'1900-01-01 00:00:00', '2261-12-31 23:59:59.999999', '1970-01-01 00:00:00.000001', NULL",
    ),
    "nt": (
        "TIMESTAMP_NTZ",
        "'1900-01-01 00:00:00', '2261-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999', NULL",
    ),
    "ar": ("ARRAY<STRING>", "array('x', NULL), array(), array(''), array('y')"),
    "mp": ("MAP<STRING, INT>", "map('x', 1, 'y', NULL), map(), map('', 0), map('z', 2)"),
    "st": (
        "STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>",
        "struct(1, array(struct('c'))), struct(NULL, array()), struct(2, E), struct(3, E)".replace(
            "E", "array()"
        ),
    ),
}


def typed_columns(types: dict[str, tuple[str, str]]) -> str:
    """Return the columns of these names and types, for CREATE TABLE."""
    return ", ".join(f"{name} {type_}" for name, (type_, _) in types.items())


def typed_rows(types: dict[str, tuple[str, str]], tenant: str) -> str:
    """Return a query of four rows: `tenant` (an expression), ids from 0, and the types' values."""
    arrays = ", ".join(
        f"CAST(array({values}) AS ARRAY<{type_}>) AS {name}"
        for name, (type_, values) in types.items()
    )
    picked = ", ".join(f"{name}[id]" for name in types)
    return f"SELECT {tenant}, id, {picked} FROM (SELECT explode(sequence(0, 3)) AS id, {arrays})"


def deployment_at(
    clickhouse_url: str, spark: str | NearSpark, folder: Path, **changes: Any
) -> Deployment:
    """Make a deployment of real services, its log in `folder`; `spark`: an address or session."""
    log = SqlLog(f"sqlite:///{folder / 'iscp_log.sqlite'}")
    log.ensure()
    services = {
        "endpoint": ClickHouseEndpoint.parse(clickhouse_url),
        "log": log,
        "spark": lambda: get_shared_session(spark) if isinstance(spark, str) else spark,
        "private_spark": lambda: create_private_session(spark) if isinstance(spark, str) else spark,
        "lake": str(folder / "lake"),
    }
    return Deployment(**(services | changes))


def rows(*ids: int, tenant: str = "a", name: str = "some words") -> str:
    """Return a VALUES list for COLUMNS; each id determines its vector."""
    return ", ".join(
        f"({quote_string(tenant)}, {key}, {quote_string(f'{name} {key}')}, array(float({key}), "
        "float(1)))"
        for key in ids
    )


class Unpublished(Interpreter):
    """An iteration that leaves it to the test to publish what is written."""

    def execute_command(self, command: Command) -> IterationEvent:
        if isinstance(command, PlaceRows) and command.deliveries[0].claim.last:
            LEDGERS.update({_holder(each): self.ledger for each in command.deliveries})
            return IndexServed(command.deliveries, at=None)
        return super().execute_command(command)


LEDGERS: dict[Any, BatchLedger] = {}


def ledger_of(delivery: RowDelivery) -> BatchLedger:
    """Return the ledger of the iteration that made the delivery."""
    return LEDGERS[_holder(delivery)]


def _holder(delivery: RowDelivery) -> Any:
    return delivery.claim.key, delivery.claim.run_id, delivery.claim.fence


def deliveries(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
) -> Generator[Sequence[Outcome], None, None]:
    """Yield an iteration's outcomes index by index, written but not published."""
    reader = SourceReader(deployment, source, iteration.tenants, deployment.make_delta_log(source))
    interpreter = Unpublished(reader=reader, writer=IndexWriter(deployment))
    return interpreter.yield_outcomes(iteration, run_id, queued_as)


def one_by_one(*iteration: Any, **named: Any) -> Generator[Outcome, None, None]:
    """Yield the outcomes of `deliveries` one by one."""
    with closing(deliveries(*iteration, **named)) as found:
        for some in found:
            yield from some


def publish_all(deployment: Deployment, some: Sequence[RowDelivery]) -> list[Outcome]:
    """Publish deliveries of one index; a consumer may have settled its own already."""
    if some[0].published is not None:
        return list(some)
    reader: Any = SimpleNamespace(deployment=deployment)
    writer, ledger = IndexWriter(deployment), ledger_of(some[0])
    interpreter = Interpreter(reader=reader, writer=writer, ledger=ledger)
    state = IterationState(open_claims={each.claim.key: each.claim for each in some})
    commands: list[Command] = [PlaceRows(tuple(some))]
    outcomes: list[Outcome] = []
    while commands:
        command = commands.pop(0)
        if isinstance(command, ReturnOutcomes):
            outcomes += command.outcomes
        else:
            state, more = handle_event(state, interpreter.execute_command(command))
            commands[:0] = more
    return outcomes


def publish_one(deployment: Deployment, delivery: RowDelivery) -> RowDelivery:
    """Publish one delivery and return it; raise the IscpError that prevented it."""
    (outcome,) = publish_all(deployment, [delivery])
    if isinstance(outcome, FailedStep):
        errors = _list_error_classes(IscpError).values()
        raise next(each for each in errors if each.code == outcome.code)(outcome.message)
    return outcome


@dataclass
class Table:
    """A declared source table, its Delta table, and the runner's cursor."""

    deployment: Deployment
    source: SourceTable
    cursor: str | None = None
    looked: list[LookResult] = field(default_factory=list)
    runner: Runner | None = field(default=None, init=False, repr=False)
    """Kept from look to look, as in production; a copy of the table begins with a new one."""
    writer: NearSpark | None = None
    """What runs the tests' own SQL; without it, the deployment's Spark does."""

    @classmethod
    def make(
        cls,
        deployment: Deployment,
        *indexes: Index,
        columns: str = COLUMNS,
        properties: str = FEED,
        create: bool = True,
        writer: NearSpark | None = None,
        **declared: Any,
    ) -> Table:
        """Declare a table under a new name, and create it empty."""
        options = {"key": "id", "tenant": "tenant", "indexes": indexes} | declared
        source = SourceTable(f"accept{next(NUMBERS)}.rows", **options)
        table = cls(deployment, source, writer=writer)
        if create:
            table.create(columns, properties)
        return table

    def create(self, columns: str = COLUMNS, properties: str = FEED) -> None:
        by = ""
        if self.source.tenant and not self.source.buckets:
            by = f"PARTITIONED BY ({quoting.quote_identifier(self.source.tenant)})"
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING delta {by} TBLPROPERTIES ({properties})")

    @property
    def path(self) -> str:
        return self.deployment.get_table_path(self.source)

    @property
    def version(self) -> int:
        return self.deployment.make_delta_log(self.source).get_latest_moment().version

    def sql(self, statement: str) -> list[Any]:
        """Run SQL in which `{t}` is the Delta table."""
        session = self.writer or self.deployment.spark()
        return session.sql(statement.replace("{t}", f"delta.`{self.path}`")).collect()

    def insert(self, *ids: int, tenant: str = "a", name: str = "some words") -> None:
        self.sql(f"INSERT INTO {{t}} VALUES {rows(*ids, tenant=tenant, name=name)}")

    def with_indexes(self, *indexes: Index) -> Table:
        """Return the same table declared with these indexes."""
        return replace(self, source=replace(self.source, indexes=indexes))

    def jobs(self) -> list[Job]:
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        return self.deployment.log.list_jobs(table_id=table_id)

    def materialize(self, *tenants: str, run_id: str = "by hand") -> list[RowDelivery | FailedStep]:
        """Materialize as a person does: repair, and go from every watermark to the last commit."""
        iterations = Iterations(
            deployment=self.deployment,
            source=self.source,
            run_id=run_id,
            tenants=tenants or self.deployment.make_delta_log(self.source).list_tenants(),
            consumers=self.source.indexes,
            warn=pytest.fail,
        )
        with closing(iterations.iterate_jobs()) as found:
            return [outcome for some in found for outcome in some]

    def look(self) -> LookResult:
        """Look with the runner, which queues the iterations that it finds."""
        self.runner = self.runner or Runner(self.deployment, [self.source])
        look = self.runner.look(self.cursor)
        self.cursor = look.cursor
        self.looked.append(look)
        return look

    def follow(self, run_id: str = "run") -> list[RowDelivery | FailedStep]:
        """Look and run the due iterations until none is left, as the location does."""
        outcomes: list[RowDelivery | FailedStep] = []
        while dispatches := self.look().dispatches:
            for dispatch in dispatches:
                outcomes += self.run(dispatch.iteration, run_id, queued_as=dispatch.name)
        return outcomes

    def run(
        self, iteration: Iteration, run_id: str = "run", *, queued_as: str | None = None
    ) -> list[RowDelivery | FailedStep]:
        """Run one iteration, and publish each delivery before asking for the next."""
        named = {"run_id": run_id, "queued_as": queued_as}
        delta_log = self.deployment.make_delta_log(self.source)
        outcomes = []
        for part in split_iteration(iteration, delta_log):
            with closing(one_by_one(self.deployment, self.source, part, **named)) as found:
                for outcome in found:
                    written = isinstance(outcome, RowDelivery)
                    outcomes.append(publish_one(self.deployment, outcome) if written else outcome)
        return outcomes

    def iteration(self, *tenants: str, to: int | None = None) -> Iteration:
        """Return one iteration of these tenants' jobs (of one watermark); register new jobs."""
        log = self.deployment.make_delta_log(self.source)
        table_id = log.get_table_id()
        specs = make_job_specs(self.source, self.source.consumers)
        self.deployment.log.register_many(make_new_jobs(table_id, tenants, specs))
        jobs = [job for job in self.jobs() if job.key.tenant in tenants]
        return Iteration(
            table_id=table_id,
            tenants=frozenset(tenants),
            jobs=tuple(job.key for job in jobs),
            from_=jobs[0].watermark,
            to=log.get_latest_moment() if to is None else log.get_moment(to),
        )

    def query(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Query ClickHouse; `{mirror}` and other index names in braces stand for the views."""
        for index in self.source.indexes:
            sql = sql.replace(f"{{{index.name}}}", self.view(index))
        found = self.deployment.endpoint.get_client().query(sql, parameters=parameters)
        return [tuple(row) for row in found.result_rows]

    def view(self, index: Index, suffix: str = "") -> str:
        return quote_identifier(self.source.database, f"{self.source.table}_{index.name}{suffix}")

    def verdicts(self) -> list[IndexVerdict]:
        return compare_or_raise(self.deployment, self.source)

    def check(self) -> None:
        """Check that every index is in step, agrees with the source, and has each key once."""
        wrong = [each for each in read_positions(self.deployment, self.source) if not each.in_step]
        assert not wrong, wrong
        held = self.agreed()
        keys = ", ".join(map(quote_identifier, self.identity))
        for index in self.source.indexes:
            query = f"SELECT count(), uniqExact({keys}) FROM {self.view(index)}"
            assert self.query(query) == [(held[index.name], held[index.name])], index.name

    def agreed(self) -> dict[str, int]:
        """Return the number of source rows in each index; all indexes of all tenants must agree."""
        verdicts = self.verdicts()
        assert [each for each in verdicts if not each.agrees] == []
        tenants = set(self.deployment.make_delta_log(self.source).list_tenants())
        held = dict[str, int]()
        for name in {each.index for each in verdicts}:
            found = {each.tenant: each.rows for each in verdicts if each.index == name}
            assert tenants <= set(found), name
            held[name] = sum(found.values())
        assert held
        return held

    @property
    def identity(self) -> tuple[str, ...]:
        tenant = (self.source.tenant,) if self.source.tenant else ()
        return (*tenant, *self.source.keys)


def kinds(outcomes: list[RowDelivery | FailedStep]) -> list[ReadKind]:
    """Return how each delivery was read; none may have failed."""
    assert all(isinstance(each, RowDelivery) for each in outcomes), outcomes
    return [each.plan.kind for each in outcomes]
