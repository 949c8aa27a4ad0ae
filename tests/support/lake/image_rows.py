"""Commits to a small table as the image rows that a trigger gets from a scan, without Spark.

The table has the columns desk (the tenant), id (the key) and amount. A commit is a mapping from
(desk, id) to the new amount, or to GONE.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from iscp_dagster import Endpoint, SourceTable, Trigger
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.eventtriggers.consumer import TriggerConsumer
from iscp_dagster.eventtriggers.evaluation import TriggerEvaluator
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.sql.active_sets import ISCP_ACTIVE, read_active_sets
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.model.jobs import JobID, JobKey, NewJob
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.sync.executors.retriever import ConsumerScan, Retriever
from iscp_dagster.sync.writing.consumer_claims import ConsumerClaims
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.tables import ISCP_OUTBOX
from support.jobs.log_rows import T0

GONE: Any = object()
Commit = Mapping[tuple[str, int], Any]
TABLE_ID = "t-1"
HIGH, LOW = 500, 400
SCHEMA = pa.schema(
    [
        ("desk", pa.string()),
        ("id", pa.int64()),
        ("amount", pa.int64()),
        ("_change", pa.int8()),
        ("_image", pa.int8()),
        ("_fields", pa.list_(pa.string())),
        ("_ordinal", pa.int64()),
        ("_match", pa.bool_()),
        ("_unmatch", pa.bool_()),
        ("_version", pa.int64()),
        ("_timestamp", pa.int64()),
        ("_deleted", pa.bool_()),
    ]
)
COLUMNS = tuple(SCHEMA.names[:-3])


def micros(version: int) -> int:
    return version * 1_000_000 + 123


def moment(version: int) -> Moment:
    return START if version < 0 else Moment(version, micros(version))


@dataclass
class Trades:
    """The table's commits; number 0 is the first."""

    commits: Sequence[Commit]
    hysteresis: bool = True

    def state(self, version: int) -> dict[tuple[str, int], Any]:
        amounts: dict[tuple[str, int], Any] = {}
        for commit in self.commits[: version + 1]:
            amounts |= commit
        return {key: amount for key, amount in amounts.items() if amount is not GONE}

    def tail(self, after: int, upto: int) -> list[dict[str, Any]]:
        return [row for version in range(after + 1, upto + 1) for row in self._changed(version)]

    def snapshot(self, version: int) -> list[dict[str, Any]]:
        return [
            self._row(key, amount, ChangeKind.BASE, 1, version, 0)
            for key, amount in sorted(self.state(version).items())
        ]

    def _changed(self, version: int) -> Iterator[dict[str, Any]]:
        before, after = self.state(version - 1), self.state(version)
        ordinals: dict[str, int] = {}
        for key in sorted(self.commits[version]):
            images = [image for image, state in enumerate((before, after)) if key in state]
            if not images or (len(images) == 2 and before[key] == after[key]):
                continue
            kinds = {(0,): ChangeKind.DELETE, (1,): ChangeKind.INSERT}
            kind = kinds.get(tuple(images), ChangeKind.UPDATE)
            ordinal = ordinals[key[0]] = ordinals.get(key[0], -1) + 1
            for image in images:
                yield self._row(key, (before, after)[image][key], kind, image, version, ordinal)

    def _row(
        self, key: tuple[str, int], amount: Any, kind: ChangeKind, image: int, version: int, at: int
    ) -> dict[str, Any]:
        match = amount is not None and amount > HIGH
        low = amount is not None and amount < LOW
        return {
            "desk": key[0],
            "id": key[1],
            "amount": amount,
            "_change": int(kind),
            "_image": image,
            "_fields": [],
            "_ordinal": at,
            "_match": match,
            "_unmatch": low if self.hysteresis else not match,
            "_version": version,
            "_timestamp": micros(version),
            "_deleted": False,
        }


@dataclass
class Alerts:
    """A trigger's jobs in a real log, iterated without Spark."""

    log: SqlLog
    trades: Trades
    initial: str = "skip"
    pending: int = 1_000
    match: str = f"amount > {HIGH}"
    tenanted: bool = True
    shuffle: Any = list
    """Reorders the rows of a scan."""

    @property
    def source(self) -> SourceTable:
        return SourceTable("shop.trades", key="id", tenant="desk" if self.tenanted else None)

    @property
    def trigger(self) -> Trigger:
        hook = Endpoint("hook", url="https://example.com/hook", secrets=["S"], pending=self.pending)
        unmatch = f"amount < {LOW}" if self.trades.hysteresis else None
        return Trigger(
            "large_trade", on=self.source, match=self.match, unmatch=unmatch, initial=self.initial,
            to=[hook],
        )  # fmt: skip

    def key(self, tenant: str) -> JobKey:
        return JobKey(tenant=tenant, table_id=TABLE_ID, job_name="large_trade")

    def register(self, *tenants: str, after: int = -1) -> None:
        info = ConsumerInfo(type="trigger", db="shop", table="trades", job="large_trade")
        spec = JobSpec(detail=IterationDetail(consumer=info))
        name = JobID(db="shop", table="trades", job="large_trade")
        rows = [
            NewJob(tenant=each, name=name, table_id=TABLE_ID, spec=spec, watermark=moment(after))
            for each in tenants
        ]
        self.log.register_many(rows)

    def watermarks(self) -> dict[str, int]:
        return {job.key.tenant: job.watermark.version for job in self.log.list_jobs()}

    def begin_run(self, to: int, *tenants: str, run: str = "run") -> ConsumerClaims:
        jobs = [job for job in self.log.list_jobs() if not tenants or job.key.tenant in tenants]
        iteration = Iteration.from_jobs(jobs, moment(to))
        return ConsumerClaims(log=self.log, claims=self.log.claim_jobs(iteration, run, {}))

    def iterate(self, to: int, *tenants: str, gap: str = "") -> Retriever:
        """Bring the tenants' jobs to a version; with `gap`, by a snapshot for that reason."""
        sink = self.begin_run(to, *tenants)
        while True:
            retriever = self.consume(sink, gap=gap)
            left = [claim for claim in retriever.next_claims.values() if claim is not None]
            if not left:
                return retriever
            sink = ConsumerClaims(log=self.log, claims=left)

    def consume(
        self, sink: ConsumerClaims, *, gap: str = "", outbox: Outbox | None = None
    ) -> Retriever:
        """Have the consumer take the step of the sink's claims."""
        retriever = self.retriever(sink, snapshot=bool(gap))
        consumer = self.consumer(reason=gap)
        if outbox is not None:
            consumer = replace(consumer, outbox=outbox)
        consumer.consume(retriever)
        return retriever

    def consumer(self, reason: str = "") -> TriggerConsumer:
        source = self.source
        identity = (*([source.tenant] if source.tenant else []), *source.keys)
        return TriggerConsumer(
            source=source,
            evaluator=TriggerEvaluator(self.trigger, identity),
            table_id=TABLE_ID,
            log=self.log,
            outbox=Outbox(self.log.engine, clock=lambda: T0),
            ids=IdScheme(),
            clock=lambda: T0,
            reason=reason,
        )

    def retriever(self, sink: ConsumerClaims, *, snapshot: bool) -> Retriever:
        range_ = sink.claims[0].step.range
        whole = snapshot or range_.initial
        scan = ConsumerScan(
            job=sink.job,
            registrations=sink.registrations,
            range=range_,
            data_type=DataType.SNAPSHOT if whole else DataType.TAIL,
            columns=COLUMNS,
            delete_columns=("desk", "id"),
            tenant_column=self.source.tenant,
            others=True,
        )
        after, upto = range_.from_.version, range_.to.version
        rows = self.trades.snapshot(upto) if whole else self.trades.tail(after, upto)
        messages: queue.Queue[Any] = queue.Queue()
        for half in self.shuffle([rows[: len(rows) // 2], rows[len(rows) // 2 :]]):
            messages.put(pa.Table.from_pylist(half, SCHEMA))
        messages.put(None)
        return Retriever(
            scan=scan,
            move_watermarks=sink.move_watermarks,
            find_lost_tenants=sink.find_lost_tenants,
            messages=messages,
        )

    def events(self) -> list[tuple[str, str, str, int]]:
        """Every event in the outbox in its order: type, tenant, key and version."""
        names = ("event_type", "tenant", "event_key", "source_version")
        chosen = sa.select(*(ISCP_OUTBOX.c[name] for name in names))
        with self.log.begin_read() as connection:
            found = connection.execute(chosen.order_by(ISCP_OUTBOX.c.number))
            return [tuple(row) for row in found]

    def outbox(self) -> list[dict[str, Any]]:
        with self.log.begin_read() as connection:
            found = connection.execute(sa.select(ISCP_OUTBOX).order_by(ISCP_OUTBOX.c.number))
            return [dict(row) for row in found.mappings()]

    def active(self) -> set[str]:
        """The keys of all active rows that are kept."""
        with self.log.begin_read() as connection:
            return set(connection.scalars(sa.select(ISCP_ACTIVE.c.event_key)))

    def held(self, tenant: str) -> Any:
        with self.log.begin_read() as connection:
            return read_active_sets(connection, [self.key(tenant)]).get(self.key(tenant))
