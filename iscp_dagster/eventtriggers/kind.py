"""Event triggers as a kind of consumer: events of a table's or a view's changes, for an outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iscp_dagster.model.consumers.kinds import DeclaredKind, ScanContext
from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.images import ImageSource, TriggerConditions
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import HistoryStart
from iscp_dagster.model.specs import ConsumerInfo


class EventTriggerKind(DeclaredKind):
    """Reads both images; its events commit with the watermark, in the database of the ISCP log."""

    noun: ClassVar[str] = "trigger"
    declare: ClassVar[str] = "Trigger({name}, ...)"
    of_images: ClassVar[bool] = True
    begins_before_first_commit: ClassVar[bool] = True
    io_manager: ClassVar[str] = "trigger_events"
    see: ClassVar[str] = "read its events with `iscp events list`"

    @property
    def title(self) -> str:
        """Unlike a plain trigger, which is a rule by which jobs become due."""
        return f"event {self.type}"

    def list_declared(self, source: SourceTable) -> Sequence[Trigger]:
        return source.triggers

    def get_image_source(self, source: SourceTable, info: ConsumerInfo) -> ImageSource | None:
        trigger = next((trigger for trigger in source.triggers if trigger.name == info.job), None)
        if trigger is None:
            raise ConfigError(
                f"Job {source.name}/{info.job}: the location declares no trigger {info.job!r}. "
                "Declare it, or unregister the job."
            )
        condition = TriggerConditions(
            name=trigger.name, match=trigger.match, unmatch=trigger.unmatch
        )
        return ImageSource.of(trigger.on.definition).replace_conditions([condition])

    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        from iscp_dagster.eventtriggers.consumer import TriggerConsumer

        return TriggerConsumer.from_info(
            source,
            info,
            log=scan.deployment.log,
            table_id=scan.table_id,
            columns=scan.columns,
            ids=scan.deployment.event_ids,
            clock=scan.deployment.clock,
            reason=scan.reason,
        )

    def find_history_start(
        self, source: SourceTable, job: Job, deployment: Any
    ) -> HistoryStart | None:
        from iscp_dagster.joblog.sql.active_sets import read_active_sets

        del source
        with deployment.log.begin_read() as connection:
            active_set = read_active_sets(connection, [job.key]).get(job.key)
        if active_set is None or active_set.registration != job.registration:
            return None
        return HistoryStart(at=active_set.since, gap=(active_set.gap,) if active_set.gap else ())

    def describe(self, source: SourceTable, declared: Trigger) -> tuple[str, Mapping[str, Any]]:
        del source
        summary = (
            f"Fires on {declared.on.name!r} when a row begins to meet a condition, "
            "and when it ceases to."
        )
        return summary, {
            "on": declared.on.name,
            "match": declared.match,
            "unmatch": declared.unmatch or "not matching",
            "payload": ", ".join(declared.columns) or "all columns",
            "initial": declared.initial,
            "endpoints": ", ".join(declared.endpoints) or "none",
        }
