"""User-defined assets that return a frame: where its rows are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from dagster import AssetKey, InputContext, OutputContext

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.frames import FrameTable
from iscp_dagster.model.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    Frame: TypeAlias = pa.Table | pd.DataFrame | DataFrame
else:
    Frame = Any

PARTITION_COLUMN = "partition_expr"
"""The metadata key of an asset's partition column, as in Dagster's IO managers."""
DATABASE = "schema"
"""The metadata key of the database, for an asset whose key has one part."""
ORDER_BY = "clickhouse/order_by"
"""The metadata key of the columns that a new table is sorted by."""
_TABLE_NAME = "dagster/table_name"


def to_arrow(frame: Frame, asset: str) -> pa.Table:
    """The rows of a PySpark, Arrow or pandas frame. Raises ConfigError for anything else."""
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    if type(frame).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    raise ConfigError(
        f"The asset {asset} returned a {type(frame).__name__}, which the IO manager of ClickHouse "
        "does not store. Return a PySpark, Arrow or pandas frame, or name another io_manager_key."
    )


def build_frame_table(
    endpoint: ClickHouseEndpoint, context: OutputContext | InputContext, metadata: Mapping[str, Any]
) -> FrameTable:
    """The table of the context's asset, which has this metadata.

    Raises ConfigError if the asset has partitions but no partition column.
    """
    database, name = get_database_and_table(context.asset_key, metadata)
    partitioned = context.asset_partitions_def is not None
    column = metadata.get(PARTITION_COLUMN) if partitioned else None
    if partitioned and column is None:
        raise ConfigError(
            f"The asset {context.asset_key.to_user_string()} has partitions, and nothing names "
            f'their column. Add metadata={{"{PARTITION_COLUMN}": "..."}} to it.'
        )
    order_by = metadata.get(ORDER_BY, ())
    return FrameTable(
        endpoint=endpoint,
        database=database,
        name=name,
        partition=None if column is None else str(column),
        order_by=(order_by,) if isinstance(order_by, str) else tuple(map(str, order_by)),
    )


def get_database_and_table(key: AssetKey, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The asset's database and table, from its metadata or the last two parts of its key."""
    if table_name := metadata.get(_TABLE_NAME):
        database, _, name = str(table_name).partition(".")
        return database, name
    database = key.path[-2] if len(key.path) > 1 else str(metadata.get(DATABASE, "default"))
    return database, key.path[-1]
