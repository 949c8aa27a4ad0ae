"""Event triggers as a kind of consumer: events of a table's or a view's changes, for an outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iscp_dagster.model.consumers.kinds import DeclaredKind, Scan
from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.images import Condition, Transitions
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Beginning
from iscp_dagster.model.specs import ConsumerInfo


class EventTriggers(DeclaredKind):
    """Reads both images; its events commit with the watermark, in the database of the ISCP log."""

    called: ClassVar[str] = "trigger"
    declare: ClassVar[str] = "Trigger({name}, ...)"
    of_images: ClassVar[bool] = True
    begins_before_first_commit: ClassVar[bool] = True
    io_manager: ClassVar[str] = "trigger_events"
    see: ClassVar[str] = "read its events with `iscp events list`"

    @property
    def title(self) -> str:
        """Not a plain trigger, which is a rule by which jobs become due."""
        return f"event {self.type}"

    def declared(self, source: SourceTable) -> Sequence[Trigger]:
        return source.triggers

    def transitions(self, source: SourceTable, info: ConsumerInfo) -> Transitions | None:
        trigger = next((each for each in source.triggers if each.name == info.job), None)
        if trigger is None:
            raise ConfigError(
                f"Job {source.name}/{info.job}: the location declares no trigger {info.job!r}. "
                "Declare it, or unregister the job."
            )
        condition = Condition(name=trigger.name, match=trigger.match, unmatch=trigger.unmatch)
        return Transitions.of(trigger.on.definition).with_conditions([condition])

    def consumer(self, source: SourceTable, info: ConsumerInfo, scan: Scan) -> Consumer:
        from iscp_dagster.eventtriggers.consumer import TriggerConsumer

        return TriggerConsumer.of(
            source,
            info,
            log=scan.deployment.log,
            table_id=scan.table_id,
            columns=scan.columns,
            ids=scan.deployment.event_ids,
            clock=scan.deployment.clock,
            reason=scan.reason,
        )

    def history(self, source: SourceTable, job: Job, deployment: Any) -> Beginning | None:
        from iscp_dagster.joblog.sql.active import active_sets

        del source
        with deployment.log.reading() as connection:
            held = active_sets(connection, [job.key]).get(job.key)
        if held is None or held.registration != job.registration:
            return None
        return Beginning(at=held.since, gap=(held.gap,) if held.gap else ())

    def describe(self, source: SourceTable, declared: Trigger) -> tuple[str, Mapping[str, Any]]:
        del source
        said = (
            f"Fires on {declared.on.name!r} when a row begins to meet a condition, "
            "and when it ceases to."
        )
        return said, {
            "on": declared.on.name,
            "match": declared.match,
            "unmatch": declared.unmatch or "not matching",
            "payload": ", ".join(declared.columns) or "all columns",
            "initial": declared.initial,
            "endpoints": ", ".join(declared.endpoints) or "none",
        }
