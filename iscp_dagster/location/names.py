"""Names of source tables and indexes in Dagster, and the tags of runs."""

from __future__ import annotations

import re

from dagster import AssetKey

from iscp_dagster.clickhouse.connect.endpoint import parse_endpoints
from iscp_dagster.model.declared.tables import Index, SourceTable

RUNNER = "iscp_runner"
NEWS = "iscp_news"
"""The two sensors."""
TABLE_TAG = "iscp/table"
TENANT_TAG = "iscp/tenant"
TENANT_COUNT_TAG = "iscp/tenants"
"""How many tenants a run is for, if more than one."""
SERVICES_TAG = "iscp/services"
"""On a run of service consumers only, which waits for handlers: its tenant, or for several tenants
a unique name. `dagster.yaml` limits such runs, so that they leave slots to others."""
PRIORITY_TAG = "dagster/priority"
TENANT_COLUMN = "iscp/tenant_column"
"""Definition metadata: the column of the index view that holds the tenant."""
SHARD = "iscp/shard"
"""Definition metadata: the number of the ClickHouse server that the index is on."""
CLICKHOUSE_IO_MANAGER = "clickhouse"
"""The IO manager that writes index tables and the frames of user-defined assets."""
CLICKHOUSE_POOL = "clickhouse"
"""The pool of a location without a ClickHouse URL."""


def get_clickhouse_pool(url: str, urls: str = "") -> str:
    """The pool of all runs that write to one ClickHouse, by its host and port.

    Locations with the same CLICKHOUSE_URL, or first of CLICKHOUSE_URLS, share it, whatever their
    user; without a URL it is `clickhouse`. Raises ConfigError for an invalid URL.
    """
    if not (url or urls):
        return CLICKHOUSE_POOL
    endpoint, *_ = parse_endpoints(url, urls)
    host = re.sub(r"[^A-Za-z0-9._:-]", "_", endpoint.host)
    return f"{CLICKHOUSE_POOL}:{host}:{endpoint.port}"


def get_source_asset_key(source: SourceTable) -> AssetKey:
    return AssetKey([source.database, source.table])


def get_index_asset_key(source: SourceTable, index: Index) -> AssetKey:
    """Named after the index view that a user queries."""
    return AssetKey([source.database, f"{source.table}_{index.name}"])


def get_job_asset_key(source: SourceTable, job_name: str) -> AssetKey:
    """Like `get_index_asset_key`, also for a job that no index declares."""
    return AssetKey([source.database, f"{source.table}_{job_name}"])


def get_sync_job_name(source: SourceTable) -> str:
    return f"sync_{source.database}_{source.table}"


def get_batch_sync_job_name(source: SourceTable) -> str:
    return f"batch_sync_{source.database}_{source.table}"


def get_index_op_name(source: SourceTable) -> str:
    return f"index_{source.database}_{source.table}"


def get_load_op_name(source: SourceTable) -> str:
    return f"load_{source.database}_{source.table}"


def get_verify_op_name(source: SourceTable) -> str:
    return f"verify_{source.database}_{source.table}"


def get_partitions_name(source: SourceTable) -> str:
    """The name of the source's set of tenants."""
    return f"{source.database}_{source.table}_tenants"
