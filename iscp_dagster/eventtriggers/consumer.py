"""The consumer of a trigger's job: events, active rows and watermark in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from iscp_dagster.events.changes import Stamped
from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.eventtriggers.evaluation import Evaluated, Read, Rule
from iscp_dagster.eventtriggers.images import gathered, its_own, stamped
from iscp_dagster.eventtriggers.recording import Recorder
from iscp_dagster.joblog.sql.active import ActiveSet, active_keys, active_sets, keep, keep_sets
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.clock import Clock
from iscp_dagster.model.consumers.protocol import DataRetriever, DataType
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, FeedGoneError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.pending import PendingEvent


@dataclass(frozen=True, kw_only=True)
class TriggerConsumer:
    """Evaluates a trigger over the image rows of its tenants, see `model.consumers.Consumer`.

    Whatever is written commits with the watermark or not at all. A tenant that cannot be
    evaluated, or whose events the outbox has no room for, fails alone: nothing of it is written.
    The same commits give the same events and ids, however they are cut into iterations.
    """

    source: SourceTable
    rule: Rule
    table_id: str
    log: SqlLog
    outbox: Outbox
    ids: IdScheme
    clock: Clock
    reason: str = ""
    """Why the rows are a snapshot, where they are one."""

    @classmethod
    def of(
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
        """The consumer of a trigger's job; `columns` are those of what it is on.

        Raises ConfigError for a trigger that is not declared, or that asks for another column.
        """
        trigger = next((each for each in source.triggers if each.name == info.job), None)
        if trigger is None:
            raise ConfigError(
                f"Job {source.name}/{info.job}: the location declares no trigger of that name on "
                f"{source.name}. Declare it again, or unregister the job."
            )
        assert isinstance(log, SqlLog)
        if unknown := [each for each in trigger.columns if each not in columns]:
            raise ConfigError(
                f"Trigger {trigger.name!r}: columns=[...] names {unknown[0]!r}, which "
                f"{trigger.on.name!r} does not have; it has: {', '.join(its_own(columns))}."
            )
        identity = (*((source.tenant,) if source.tenant else ()), *source.keys)
        return cls(
            source=source,
            rule=Rule(trigger, identity),
            table_id=table_id,
            log=log,
            outbox=Outbox(log.engine, clock=clock),
            ids=ids,
            clock=clock,
            reason=reason,
        )

    def consume(self, retriever: DataRetriever) -> None:
        _Consuming(its=self, retriever=retriever).consume()


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    evaluated: Evaluated
    events: Sequence[PendingEvent] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """What is shown of the iteration."""
        counts: dict[str, Any] = {
            "matches": self.evaluated.count(EventType.MATCH),
            "unmatches": self.evaluated.count(EventType.UNMATCH),
            "active": self.evaluated.held.number,
        }
        gap = self.evaluated.gap
        return counts | ({"gap": gap} if gap else {})


@dataclass(frozen=True, kw_only=True)
class _Consuming:
    """One call of `consume`."""

    its: TriggerConsumer
    retriever: DataRetriever
    held: dict[str, ActiveSet] = field(default_factory=dict)
    """By tenant, what earlier iterations kept."""

    def consume(self) -> None:
        its, retriever = self.its, self.retriever
        self._recall()
        rule = its.rule
        rows = gathered(retriever, its.source.tenant, rule.condition, rule.columns)
        outcomes = self._outcomes(rows, its.clock())
        with its.log.writing() as connection:
            left = self._left()
            quiet = {tenant for tenant in left if self._is_quiet(tenant, outcomes[tenant])}
            for tenant in left:
                retriever.tell(tenant, outcomes[tenant].facts)
                if tenant not in quiet:
                    self._put(connection, tenant, outcomes[tenant])
            sets = {self._job(tenant): outcomes[tenant].evaluated.held for tenant in quiet}
            keep_sets(connection, sets)
            retriever.update_watermark(connection)

    def _is_quiet(self, tenant: str, outcome: _Outcome) -> bool:
        """Whether nothing fired and no active row moved, as for most of many tenants."""
        its = outcome.evaluated
        return not (outcome.events or its.added or its.removed or self._anew(tenant, its))

    def _anew(self, tenant: str, evaluated: Evaluated) -> bool:
        """Whether active rows of before may have to go."""
        return evaluated.anew and tenant in self.held

    def _left(self) -> list[str]:
        return sorted(self.retriever.tenants - self.retriever.refused.keys())

    def _job(self, tenant: str) -> JobKey:
        job = self.retriever.job.job
        return JobKey(tenant=tenant, table_id=self.its.table_id, job_name=job)

    def _recall(self) -> None:
        """Read what is kept of each tenant; refuse changes where a snapshot must come first."""
        jobs = {self._job(tenant): tenant for tenant in self.retriever.tenants}
        with self.its.log.reading() as connection:
            sets = active_sets(connection, jobs)
        self.held.update({jobs[job]: each for job, each in sets.items()})
        if self.retriever.data_type is DataType.SNAPSHOT:
            return
        for tenant, each in self.held.items():
            mine = each.registration == self.retriever.registrations[tenant]
            if mine and self.its.rule.is_another(each):
                self.retriever.refuse(tenant, FeedGoneError(self.its.rule.changed))

    def _outcomes(self, rows: Mapping[str, pa.Table], recorded: datetime) -> dict[str, _Outcome]:
        """What comes of each tenant; a tenant that cannot be evaluated is refused."""
        found: dict[str, _Outcome] = {}
        rule, ids = self.its.rule, self.its.ids
        recorder = Recorder(
            trigger=rule.trigger, identity=rule.identity, ids=ids, recorded=recorded
        )
        with self.its.log.reading() as connection:
            for tenant in self._left():
                try:
                    evaluated = self._evaluated(connection, tenant, rows.get(tenant))
                    events = [recorder.recorded_event(tenant, each) for each in evaluated.fired]
                except IscpError as error:
                    self.retriever.refuse(tenant, error)
                else:
                    found[tenant] = _Outcome(evaluated=evaluated, events=events)
        return found

    def _evaluated(self, connection: Any, tenant: str, rows: pa.Table | None) -> Evaluated:
        its = self.its
        named = None if its.source.tenant is None else tenant
        changes = [] if rows is None else self._stamped(rows, named)
        active = self._active(connection, tenant, changes)
        return its.rule.evaluated(changes, self.held.get(tenant), active, self._read(tenant))

    def _stamped(self, rows: pa.Table, tenant: str | None) -> list[Stamped]:
        its = self.its
        name = f"{its.source.name}/{its.rule.trigger.name}"
        return stamped(rows, tenant, its.source.keys, its.rule.condition, name=name)

    def _active(self, connection: Any, tenant: str, changes: Sequence[Stamped]) -> frozenset[str]:
        """The active rows among those that changed."""
        if not self.its.rule.condition.unmatch:
            return frozenset()
        return active_keys(connection, self._job(tenant), {each.key for each, _ in changes})

    def _read(self, tenant: str) -> Read:
        return Read(
            registration=self.retriever.registrations[tenant],
            range=self.retriever.range,
            snapshot=self.retriever.data_type is DataType.SNAPSHOT,
            reason=self.its.reason,
        )

    def _put(self, connection: Any, tenant: str, outcome: _Outcome) -> None:
        """Write what came of one tenant; refuse it, and write nothing of it, if it has no room."""
        try:
            with connection.begin_nested():
                if outcome.events:
                    bounds = self.its.rule.bounds
                    self.its.outbox.put(connection, outcome.events, bounds=bounds)
                keep(
                    connection,
                    self._job(tenant),
                    outcome.evaluated.held,
                    added=outcome.evaluated.added,
                    removed=outcome.evaluated.removed,
                    anew=self._anew(tenant, outcome.evaluated),
                )
        except IscpError as error:
            self.retriever.refuse(tenant, error)
