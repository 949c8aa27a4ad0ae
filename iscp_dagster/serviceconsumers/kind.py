"""Service consumers as a kind of consumer: a handler that is invoked with a table's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iscp_dagster.model.consumers.kinds import DeclaredKind, ScanContext
from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.specs import ConsumerInfo


class ServiceConsumerKind(DeclaredKind):
    """Invokes with idempotency keys: a replay repeats them, a rebuild makes new ones."""

    noun: ClassVar[str] = "service consumer"
    declare: ClassVar[str] = "ServiceConsumer(..., name={name})"
    iterates_alone: ClassVar[bool] = True
    renews_generation: ClassVar[bool] = True
    io_manager: ClassVar[str] = "service_invocations"
    see: ClassVar[str] = "look at its invocations with `iscp invocations list`"

    def list_declared(self, source: SourceTable) -> Sequence[ServiceConsumer]:
        return source.services

    def list_columns(
        self, source: SourceTable, info: ConsumerInfo, available: Sequence[str]
    ) -> tuple[str, ...]:
        columns = tuple(source.get_service(info.job).columns)
        return source.select_columns(Index(name=info.job, columns=columns or None), available)

    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        from iscp_dagster.serviceconsumers.consumer import InvokingConsumer

        return InvokingConsumer.from_info(
            source,
            info,
            table_id=scan.table_id,
            open_runtime=scan.deployment.open_runtime,
            find_claim_error=scan.lost,
            columns=scan.columns,
            repairs=scan.repairs,
        )

    def describe(
        self, source: SourceTable, declared: ServiceConsumer
    ) -> tuple[str, Mapping[str, Any]]:
        summary = (
            f"Invokes `{declared.handler}` with the changes of `{source.name}`, tenant by tenant."
        )
        return summary, {
            "on": source.name,
            "handler": declared.handler,
            "service_endpoint": declared.url,
            "payload": ", ".join(declared.columns) or "all columns",
            "rows_per_invocation": declared.rows,
        }
