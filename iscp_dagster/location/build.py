"""From declared tables to Dagster definitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import AssetsDefinition, AssetSpec, Definitions

from iscp_dagster.api.discovery import DECLARATIONS_KEY, resolve_declarations
from iscp_dagster.api.environment import (
    count_shards,
    get_databases,
    parse_number,
    parse_run_retention,
)
from iscp_dagster.location.assets.checks import build_index_checks
from iscp_dagster.location.assets.index_assets import build_index_assets
from iscp_dagster.location.assets.io_manager import OutcomeIOManager
from iscp_dagster.location.assets.iteration_job import build_startable_jobs
from iscp_dagster.location.assets.maintenance import build_hourly_schedules, build_maintenance_jobs
from iscp_dagster.location.assets.source_asset import build_source_asset, build_source_spec
from iscp_dagster.location.assets.source_check import build_source_check
from iscp_dagster.location.executor import guarded_executor
from iscp_dagster.location.internals import ObjectMetadataValue
from iscp_dagster.location.names import get_clickhouse_pool
from iscp_dagster.location.sensor.news import build_news_sensor
from iscp_dagster.location.sensor.runner import SCAN_SECONDS, Lookout, build_runner_sensor
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.linking.sound import ConsistentDeclarations
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import SourceTable, expand_shards
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.variables import CLICKHOUSE_URL, CLICKHOUSE_URLS

_LOGGER = logging.getLogger(__name__)
_CLICKHOUSES = (CLICKHOUSE_URL, CLICKHOUSE_URLS)
_SCAN = "ISCP_SCAN_SECONDS"
_MOST_SECONDS = 86_400


def build_definitions(
    tables: Sequence[SourceTable],
    resources: Mapping[str, Any],
    *,
    views: Sequence[View] = (),
    triggers: Sequence[Trigger] = (),
    endpoints: Sequence[Endpoint] = (),
    services: Sequence[ServiceConsumer] = (),
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """All Dagster definitions of `tables`, and of what is declared over them.

    `resources` has `iscp`, whose `create_deployment()` provides services, and, for tables with
    indexes, the IO manager `clickhouse`; `resources_from_environment` makes them. `environ`
    (default: the process's own) says how often the runner looks, how long runs are kept, and which
    ClickHouses there are: a sharded index becomes one index per server, and all runs that write to
    them share one pool. A declaration that conflicts with others is left out, and reported by its
    table's check, `iscp health` and the log; with ISCP_STRICT=true it raises ConfigError, as an
    invalid setting does.
    """
    declarations = Declarations(
        tables=tables, views=views, triggers=triggers, endpoints=endpoints, services=services
    )
    return build_declared_definitions(declarations, resources, environ=environ)


def build_declared_definitions(
    declarations: Declarations,
    resources: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """Like `build_definitions`, for collected declarations."""
    environ = os.environ if environ is None else environ
    sound = filter_declarations(declarations, environ)
    shared = build_shared_definitions(
        sound.tables, resources, declarations=declarations, environ=environ
    )
    table_definitions = [build_table_definitions(table, environ=environ) for table in sound.tables]
    return Definitions.merge(*table_definitions, shared)


def filter_declarations(
    declarations: Declarations, environ: Mapping[str, str]
) -> ConsistentDeclarations:
    """The valid declarations (`resolve_declarations`); the log says what is left out, and why."""
    sound = resolve_declarations(declarations, environ)
    for error in sound.mistakes:
        _LOGGER.warning("[%s] %s", error.code, error)
    return sound


def build_table_definitions(
    table: SourceTable, *, environ: Mapping[str, str] | None = None
) -> Definitions:
    """The definitions of one table: its assets and their checks."""
    environ = os.environ if environ is None else environ
    table = expand_shards(table, count_shards(environ))
    consumer_assets = (
        [build_index_assets(table, _get_pool(environ), get_databases(environ))]
        if table.consumers
        else []
    )
    return Definitions(
        assets=[_build_source(table), *consumer_assets],
        asset_checks=[
            *map(build_index_checks, [table] if table.indexes else []),
            build_source_check(table),
        ],
    )


def build_shared_definitions(
    tables: Sequence[SourceTable],
    resources: Mapping[str, Any],
    *,
    declarations: Declarations | None = None,
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """The definitions that all tables share: the runner, the hourly jobs and the resources.

    `declarations` is what the tables were attached from, for tools that search modules for
    declarations. Raises ConfigError for an invalid setting.
    """
    environ = os.environ if environ is None else environ
    expanded = [expand_shards(table, count_shards(environ)) for table in tables]
    kinds = {get_consumer_kind(consumer.kind) for table in expanded for consumer in table.consumers}
    reporting = {kind.io_manager: OutcomeIOManager(kind) for kind in kinds if not kind.keeps_index}
    resources = {**reporting, **resources}
    lookout = Lookout(expanded, parse_scan_seconds(environ))
    maintenance = build_maintenance_jobs(expanded, resources, parse_run_retention(environ))
    iterations = build_startable_jobs(expanded, resources, _get_pool(environ))
    return Definitions(
        jobs=maintenance,
        schedules=build_hourly_schedules(maintenance),
        sensors=[build_runner_sensor(lookout, iterations), build_news_sensor(lookout)]
        if expanded
        else [],
        resources=dict(resources),
        executor=guarded_executor,
        metadata={
            DECLARATIONS_KEY: ObjectMetadataValue(
                declarations.everything if declarations else tuple(tables)
            )
        },
    )


def _get_pool(environ: Mapping[str, str]) -> str:
    return get_clickhouse_pool(*(environ.get(name, "") for name in _CLICKHOUSES))


def parse_scan_seconds(environ: Mapping[str, str]) -> int:
    """Seconds between the runner's looks when it waits for no commit. Raises ConfigError."""
    seconds = parse_number(environ, _SCAN, int, (1, _MOST_SECONDS), unit="whole seconds")
    return SCAN_SECONDS if seconds is None else seconds


def _build_source(table: SourceTable) -> AssetsDefinition | AssetSpec:
    return build_source_spec(table) if table.load is None else build_source_asset(table, table.load)
