"""From declared tables to Dagster definitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import AssetsDefinition, AssetSpec, Definitions

from iscp_dagster.api.discovery import TABLES, resolve_declarations
from iscp_dagster.api.environment import (
    count_shards,
    get_databases,
    parse_number,
    parse_run_retention,
)
from iscp_dagster.location.assets.checks import index_checks
from iscp_dagster.location.assets.index_assets import index_assets
from iscp_dagster.location.assets.io_manager import OutcomeIOManager
from iscp_dagster.location.assets.iteration_job import build_startable_jobs
from iscp_dagster.location.assets.maintenance import build_hourly_schedules, build_maintenance_jobs
from iscp_dagster.location.assets.source_asset import build_source_asset, build_source_spec
from iscp_dagster.location.assets.source_check import build_source_check
from iscp_dagster.location.executor import named_in_process
from iscp_dagster.location.internals import ObjectMetadataValue
from iscp_dagster.location.names import get_clickhouse_pool
from iscp_dagster.location.sensor.news import build_news_sensor
from iscp_dagster.location.sensor.runner import SCAN_SECONDS, Lookout, build_runner_sensor
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import SourceTable, expand_shards
from iscp_dagster.model.declared.together.attach import Declarations
from iscp_dagster.model.declared.together.sound import Sound
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
    """Everything that Dagster needs to know about `tables`, and about what is declared over them.

    `resources` has `iscp`, whose `deployment()` gives services, and an IO manager `<kind>_index`
    for every index kind; `resources_from_environment` gives them. `environ` (default: the
    process's own) says how often the runner looks, how long runs are kept, and which ClickHouses
    there are: a sharded index becomes one index per server, and all runs that write to them share
    one pool. A declaration that cannot stand beside the others is left out, which the check of its
    table, `iscp health` and the log say; with ISCP_STRICT=true it raises ConfigError, as a wrong
    setting does.
    """
    given = Declarations(
        tables=tables, views=views, triggers=triggers, endpoints=endpoints, services=services
    )
    return build_declared_definitions(given, resources, environ=environ)


def build_declared_definitions(
    given: Declarations, resources: Mapping[str, Any], *, environ: Mapping[str, str] | None = None
) -> Definitions:
    """The same of declarations that are together already."""
    environ = os.environ if environ is None else environ
    found = filter_declarations(given, environ)
    shared = build_runner_definitions(found.tables, resources, given=given, environ=environ)
    own = [build_table_definitions(table, environ=environ) for table in found.tables]
    return Definitions.merge(*own, shared)


def filter_declarations(given: Declarations, environ: Mapping[str, str]) -> Sound:
    """What of the declarations stands, see `stands`; the log says what is left out, and why."""
    found = resolve_declarations(given, environ)
    for error in found.mistakes:
        _LOGGER.warning("[%s] %s", error.code, error)
    return found


def build_table_definitions(
    table: SourceTable, *, environ: Mapping[str, str] | None = None
) -> Definitions:
    """What belongs to one table alone: its assets and their checks."""
    environ = os.environ if environ is None else environ
    table = expand_shards(table, count_shards(environ))
    below = (
        [index_assets(table, _get_pool(environ), get_databases(environ))] if table.consumers else []
    )
    return Definitions(
        assets=[_build_source(table), *below],
        asset_checks=[
            *map(index_checks, [table] if table.indexes else []),
            build_source_check(table),
        ],
    )


def build_runner_definitions(
    tables: Sequence[SourceTable],
    resources: Mapping[str, Any],
    *,
    given: Declarations | None = None,
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """What all tables of the location share: the runner, the hourly jobs and the resources.

    `given` is what the tables were attached from, for those that look for declarations in a module.
    Raises ConfigError for a wrong setting.
    """
    environ = os.environ if environ is None else environ
    laid_out = [expand_shards(table, count_shards(environ)) for table in tables]
    kinds = {consumer_kind(each.kind) for table in laid_out for each in table.consumers}
    reporting = {kind.io_manager: OutcomeIOManager(kind) for kind in kinds if not kind.keeps_index}
    resources = {**reporting, **resources}
    lookout = Lookout(laid_out, scan_seconds_of(environ))
    maintenance = build_maintenance_jobs(laid_out, resources, parse_run_retention(environ))
    iterations = build_startable_jobs(laid_out, resources, _get_pool(environ))
    return Definitions(
        jobs=maintenance,
        schedules=build_hourly_schedules(maintenance),
        sensors=[build_runner_sensor(lookout, iterations), build_news_sensor(lookout)]
        if laid_out
        else [],
        resources=dict(resources),
        executor=named_in_process,
        metadata={TABLES: ObjectMetadataValue(given.everything if given else tuple(tables))},
    )


def _get_pool(environ: Mapping[str, str]) -> str:
    return get_clickhouse_pool(*(environ.get(name, "") for name in _CLICKHOUSES))


def scan_seconds_of(environ: Mapping[str, str]) -> int:
    """How often the runner looks when it waits for no commit. Raises ConfigError."""
    seconds = parse_number(environ, _SCAN, int, (1, _MOST_SECONDS), unit="whole seconds")
    return SCAN_SECONDS if seconds is None else seconds


def _build_source(table: SourceTable) -> AssetsDefinition | AssetSpec:
    return build_source_spec(table) if table.load is None else build_source_asset(table, table.load)
