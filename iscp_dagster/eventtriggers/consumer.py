"""The consumer of a trigger's job: events, active rows and watermark in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from iscp_dagster.events.changes import StampedChange
from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.eventtriggers.evaluation import TenantRead, TriggerEvaluation, TriggerEvaluator
from iscp_dagster.eventtriggers.images import build_changes, list_view_columns, read_image_rows
from iscp_dagster.eventtriggers.pending_events import PendingEventBuilder
from iscp_dagster.joblog.sql.active_sets import (
    ActiveSet,
    read_active_keys,
    read_active_sets,
    store_active_set,
    store_active_sets,
)
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.clock import Clock
from iscp_dagster.model.consumers.protocol import DataRetriever, DataType
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, FeedGoneError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.webhooks.deliveries import PendingEvent
from iscp_dagster.webhooks.outbox import Outbox


@dataclass(frozen=True, kw_only=True)
class TriggerConsumer:
    """Evaluates a trigger over the image rows of its tenants, see `model.consumers.Consumer`.

    Whatever is written commits with the watermark or not at all. A tenant that cannot be
    evaluated, or whose events do not fit into the outbox, fails without the others and unwritten.
    The same commits give the same events and ids, however they are cut into iterations.
    """

    source: SourceTable
    evaluator: TriggerEvaluator
    table_id: str
    log: SqlLog
    outbox: Outbox
    ids: IdScheme
    clock: Clock
    reason: str = ""
    """Why the rows are a snapshot, if they are."""

    @classmethod
    def from_info(
        cls,
        source: SourceTable,
        info: ConsumerInfo,
        *,
        log: SqlLog,
        table_id: str,
        columns: Sequence[str],
        ids: IdScheme,
        clock: Clock,
        reason: str = "",
    ) -> TriggerConsumer:
        """The consumer of a trigger's job; `columns` are its table's or view's.

        Raises ConfigError for a trigger that is not declared, or that names an unknown column.
        """
        trigger = next((trigger for trigger in source.triggers if trigger.name == info.job), None)
        if trigger is None:
            raise ConfigError(
                f"Job {source.name}/{info.job}: the location declares no trigger of that name on "
                f"{source.name}. Declare it again, or unregister the job."
            )
        assert isinstance(log, SqlLog)
        if unknown := [name for name in trigger.columns if name not in columns]:
            raise ConfigError(
                f"Trigger {trigger.name!r}: columns=[...] names {unknown[0]!r}, which "
                f"{trigger.on.name!r} does not have; it has: "
                f"{', '.join(list_view_columns(columns))}."
            )
        identity = (*((source.tenant,) if source.tenant else ()), *source.keys)
        return cls(
            source=source,
            evaluator=TriggerEvaluator(trigger, identity),
            table_id=table_id,
            log=log,
            outbox=Outbox(log.engine, clock=clock),
            ids=ids,
            clock=clock,
            reason=reason,
        )

    def consume(self, retriever: DataRetriever) -> None:
        _ConsumeCall(consumer=self, retriever=retriever).consume()


@dataclass(frozen=True, kw_only=True)
class _TenantOutcome:
    evaluated: TriggerEvaluation
    events: Sequence[PendingEvent] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The counts to report of the iteration."""
        counts: dict[str, Any] = {
            "matches": self.evaluated.count(EventType.MATCH),
            "unmatches": self.evaluated.count(EventType.UNMATCH),
            "active": self.evaluated.active_set.row_count,
        }
        gap = self.evaluated.gap
        return counts | ({"gap": gap} if gap else {})


@dataclass(frozen=True, kw_only=True)
class _ConsumeCall:
    """One call of `consume`."""

    consumer: TriggerConsumer
    retriever: DataRetriever
    active_sets: dict[str, ActiveSet] = field(default_factory=dict)
    """By tenant, as earlier iterations kept them."""

    def consume(self) -> None:
        consumer, retriever = self.consumer, self.retriever
        self._read_active_sets()
        rule = consumer.evaluator
        rows = read_image_rows(retriever, consumer.source.tenant, rule.hysteresis, rule.columns)
        outcomes = self._evaluate_tenants(rows, consumer.clock())
        with consumer.log.begin_write() as connection:
            remaining = self._list_remaining()
            unchanged = {tenant for tenant in remaining if self._is_quiet(tenant, outcomes[tenant])}
            for tenant in remaining:
                retriever.report(tenant, outcomes[tenant].facts)
                if tenant not in unchanged:
                    self._write_outcome(connection, tenant, outcomes[tenant])
            sets = {
                self._get_job_key(tenant): outcomes[tenant].evaluated.active_set
                for tenant in unchanged
            }
            store_active_sets(connection, sets)
            retriever.update_watermark(connection)

    def _is_quiet(self, tenant: str, outcome: _TenantOutcome) -> bool:
        """Whether nothing fired and no active row moved, as for most of many tenants."""
        evaluated = outcome.evaluated
        return not (
            outcome.events
            or evaluated.added
            or evaluated.removed
            or self._should_replace_all(tenant, evaluated)
        )

    def _should_replace_all(self, tenant: str, evaluated: TriggerEvaluation) -> bool:
        """Whether earlier active rows may have to be deleted."""
        return evaluated.replaces_all and tenant in self.active_sets

    def _list_remaining(self) -> list[str]:
        return sorted(self.retriever.tenants - self.retriever.refused.keys())

    def _get_job_key(self, tenant: str) -> JobKey:
        job = self.retriever.job.job
        return JobKey(tenant=tenant, table_id=self.consumer.table_id, job_name=job)

    def _read_active_sets(self) -> None:
        """Read each tenant's active set; refuse changes where a snapshot must come first."""
        jobs = {self._get_job_key(tenant): tenant for tenant in self.retriever.tenants}
        with self.consumer.log.begin_read() as connection:
            sets = read_active_sets(connection, jobs)
        self.active_sets.update({jobs[job]: active_set for job, active_set in sets.items()})
        if self.retriever.data_type is DataType.SNAPSHOT:
            return
        for tenant, active_set in self.active_sets.items():
            current = active_set.registration == self.retriever.registrations[tenant]
            if current and self.consumer.evaluator.has_other_definition(active_set):
                self.retriever.refuse(tenant, FeedGoneError(self.consumer.evaluator.change_reason))

    def _evaluate_tenants(
        self, rows: Mapping[str, pa.Table], recorded: datetime
    ) -> dict[str, _TenantOutcome]:
        """The outcome of each tenant; refuses a tenant that cannot be evaluated."""
        outcomes: dict[str, _TenantOutcome] = {}
        evaluator, ids = self.consumer.evaluator, self.consumer.ids
        builder = PendingEventBuilder(
            trigger=evaluator.trigger, identity=evaluator.identity, ids=ids, recorded=recorded
        )
        with self.consumer.log.begin_read() as connection:
            for tenant in self._list_remaining():
                try:
                    evaluated = self._evaluate_tenant(connection, tenant, rows.get(tenant))
                    events = [builder.make_event(tenant, fired) for fired in evaluated.fired]
                except IscpError as error:
                    self.retriever.refuse(tenant, error)
                else:
                    outcomes[tenant] = _TenantOutcome(evaluated=evaluated, events=events)
        return outcomes

    def _evaluate_tenant(
        self, connection: Any, tenant: str, rows: pa.Table | None
    ) -> TriggerEvaluation:
        consumer = self.consumer
        owner = None if consumer.source.tenant is None else tenant
        changes = [] if rows is None else self._build_changes(rows, owner)
        active = self._read_active_keys(connection, tenant, changes)
        return consumer.evaluator.evaluate_changes(
            changes, self.active_sets.get(tenant), active, self._make_read_info(tenant)
        )

    def _build_changes(self, rows: pa.Table, tenant: str | None) -> list[StampedChange]:
        consumer = self.consumer
        name = f"{consumer.source.name}/{consumer.evaluator.trigger.name}"
        return build_changes(
            rows, tenant, consumer.source.keys, consumer.evaluator.hysteresis, name=name
        )

    def _read_active_keys(
        self, connection: Any, tenant: str, changes: Sequence[StampedChange]
    ) -> frozenset[str]:
        """The active rows among those that changed."""
        if not self.consumer.evaluator.hysteresis.has_unmatch:
            return frozenset()
        return read_active_keys(
            connection, self._get_job_key(tenant), {change.key for change, _ in changes}
        )

    def _make_read_info(self, tenant: str) -> TenantRead:
        return TenantRead(
            registration=self.retriever.registrations[tenant],
            range=self.retriever.range,
            snapshot=self.retriever.data_type is DataType.SNAPSHOT,
            reason=self.consumer.reason,
        )

    def _write_outcome(self, connection: Any, tenant: str, outcome: _TenantOutcome) -> None:
        """Write one tenant's outcome; if its events have no room, refuse it and write nothing."""
        try:
            with connection.begin_nested():
                if outcome.events:
                    bounds = self.consumer.evaluator.pending_limits
                    self.consumer.outbox.record_events(connection, outcome.events, bounds=bounds)
                store_active_set(
                    connection,
                    self._get_job_key(tenant),
                    outcome.evaluated.active_set,
                    added=outcome.evaluated.added,
                    removed=outcome.evaluated.removed,
                    replace_all=self._should_replace_all(tenant, outcome.evaluated),
                )
        except IscpError as error:
            self.retriever.refuse(tenant, error)
