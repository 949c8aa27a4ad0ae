"""From declared tables to Dagster definitions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import AssetsDefinition, AssetSpec, Definitions

from iscp_dagster.api.environment import databases_of, shards_of
from iscp_dagster.location.assets.checks import index_checks
from iscp_dagster.location.assets.index_assets import index_assets
from iscp_dagster.location.assets.iteration_job import jobs_of
from iscp_dagster.location.assets.maintenance import hourly, maintenance_jobs
from iscp_dagster.location.assets.source_asset import source_asset, source_spec
from iscp_dagster.location.assets.source_check import source_check
from iscp_dagster.location.executor import named_in_process
from iscp_dagster.location.names import clickhouse_pool
from iscp_dagster.location.sensor.runner import SCAN_SECONDS, runner_sensor
from iscp_dagster.model.tables import SourceTable, check_declared_once, spread

_CLICKHOUSES = ("CLICKHOUSE_URL", "CLICKHOUSE_URLS")


def build_definitions(
    tables: Sequence[SourceTable],
    resources: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """Everything that Dagster needs to know of `tables`.

    `resources` has `iscp`, whose `engine()` gives the engine, and an IO manager `<kind>_index`
    for every index kind; `resources_from_environment` gives them. `environ`, the process's own when
    left out, says how often the runner looks, and which ClickHouse servers there are: a sharded
    index is as many as these, and the runs that write to them are in one pool.
    Raises ConfigError when a table or an index is declared twice.
    """
    environ = os.environ if environ is None else environ
    tables = [spread(table, shards_of(environ)) for table in tables]
    pool = clickhouse_pool(*(environ.get(name, "") for name in _CLICKHOUSES))
    databases = databases_of(environ)
    scan_seconds = int(environ.get("ISCP_SCAN_SECONDS", SCAN_SECONDS))
    check_declared_once(tables, databases)
    indexed = [table for table in tables if table.indexes]
    maintenance = maintenance_jobs(tables, resources)
    iterations = jobs_of(tables, resources, pool)
    return Definitions(
        assets=[
            *map(_source, tables),
            *(index_assets(table, pool, databases) for table in indexed),
        ],
        asset_checks=[*map(index_checks, indexed), *map(source_check, tables)],
        jobs=maintenance,
        schedules=hourly(maintenance),
        sensors=[runner_sensor(tables, iterations, scan_seconds)] if tables else [],
        resources=dict(resources),
        executor=named_in_process,
    )


def _source(table: SourceTable) -> AssetsDefinition | AssetSpec:
    return source_spec(table) if table.load is None else source_asset(table, table.load)
