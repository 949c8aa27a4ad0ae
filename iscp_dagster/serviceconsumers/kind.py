"""Service consumers as a kind of consumer: a handler that is invoked with a table's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iscp_dagster.model.consumers.kinds import DeclaredKind, Scan
from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.specs import ConsumerInfo


class ServiceConsumers(DeclaredKind):
    """Invokes by keys that a replay makes again; a rebuild's invocations count as new ones."""

    called: ClassVar[str] = "service consumer"
    declare: ClassVar[str] = "ServiceConsumer(..., name={name})"
    iterates_alone: ClassVar[bool] = True
    renews_generation: ClassVar[bool] = True
    io_manager: ClassVar[str] = "service_invocations"
    see: ClassVar[str] = "look at its invocations with `iscp invocations list`"

    def declared(self, source: SourceTable) -> Sequence[ServiceConsumer]:
        return source.services

    def columns(
        self, source: SourceTable, info: ConsumerInfo, available: Sequence[str]
    ) -> tuple[str, ...]:
        columns = tuple(source.service(info.job).columns)
        return source.columns_of(Index(name=info.job, columns=columns or None), available)

    def consumer(self, source: SourceTable, info: ConsumerInfo, scan: Scan) -> Consumer:
        from iscp_dagster.serviceconsumers.consumer import InvokingConsumer

        return InvokingConsumer.of(
            source,
            info,
            table_id=scan.table_id,
            services=scan.deployment.services,
            lost=scan.lost,
            columns=scan.columns,
            repairs=scan.repairs,
        )

    def describe(
        self, source: SourceTable, declared: ServiceConsumer
    ) -> tuple[str, Mapping[str, Any]]:
        said = (
            f"Invokes `{declared.handler}` with the changes of `{source.name}`, tenant by tenant."
        )
        return said, {
            "on": source.name,
            "handler": declared.handler,
            "service_endpoint": declared.url,
            "payload": ", ".join(declared.columns) or "all columns",
            "rows_per_invocation": declared.rows,
        }
