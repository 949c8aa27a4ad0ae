"""The IO manager of index tables: tells of what was stored, and loads the served rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster import InputContext, IOManager, OutputContext

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.location.assets.iterations import InStep
from iscp_dagster.location.assets.metadata import delivered, in_step
from iscp_dagster.sync.context import Engine
from iscp_dagster.sync.iterate import Delivery

TENANT_COLUMN = "iscp/tenant_column"
"""The definition metadata that says which column of the view is the partition."""

SHARD = "iscp/shard"
"""Likewise: on which of the ClickHouse servers it is."""


class IndexIOManager(IOManager):
    """Tells of what an iteration stored in one index, and reads the index back.

    Storing is the iteration's own (`sync.iterate.publish`): it has to be done before the next
    index's turn, and one index that cannot be stored must stop no other (decision 24).
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def handle_output(self, context: OutputContext, obj: Delivery | InStep) -> None:
        """Show what was delivered: its rows are served, and the watermark has moved."""
        if isinstance(obj, InStep):
            return context.add_output_metadata(dict(in_step(obj.job)))
        return context.add_output_metadata(dict(delivered(obj, self._engine().clock)))

    def load_input(self, context: InputContext) -> Any:
        """The served rows of the input's tenants, as an Arrow table of the user's columns."""
        upstream = context.upstream_output
        metadata = upstream.definition_metadata if upstream else {}
        tenant = str(metadata.get(TENANT_COLUMN, ""))
        shown = str(metadata.get("dagster/table_name") or ".".join(context.asset_key.path))
        database, _, name = shown.partition(".")
        where = f" WHERE toString({ident(tenant)}) IN {{tenants:Array(String)}}" if tenant else ""
        endpoint = self._engine().endpoints[int(metadata.get(SHARD, 0))]
        view = ident(endpoint.holds(database), name)
        with endpoint.errors(f"read {view}"):
            parameters = {"tenants": list(context.asset_partition_keys)}
            client = endpoint.client()
            return client.query_arrow(f"SELECT * FROM {view}{where}", parameters=parameters)
