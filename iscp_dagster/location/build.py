"""From declared tables to Dagster definitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import AssetsDefinition, AssetSpec, Definitions

from iscp_dagster.api.discovery import TABLES, stands
from iscp_dagster.api.environment import databases_of, number_of, runs_kept_of, shards_of
from iscp_dagster.location.assets.checks import index_checks
from iscp_dagster.location.assets.index_assets import index_assets
from iscp_dagster.location.assets.io_manager import OutcomeIOManager
from iscp_dagster.location.assets.iteration_job import jobs_of
from iscp_dagster.location.assets.maintenance import hourly, maintenance_jobs
from iscp_dagster.location.assets.source_asset import source_asset, source_spec
from iscp_dagster.location.assets.source_check import source_check
from iscp_dagster.location.executor import named_in_process
from iscp_dagster.location.internals import ObjectMetadataValue
from iscp_dagster.location.names import clickhouse_pool
from iscp_dagster.location.sensor.news import news_sensor
from iscp_dagster.location.sensor.runner import SCAN_SECONDS, Lookout, runner_sensor
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import SourceTable, spread
from iscp_dagster.model.declared.together.attach import Declared
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
    given = Declared(
        tables=tables, views=views, triggers=triggers, endpoints=endpoints, services=services
    )
    return definitions_of(given, resources, environ=environ)


def definitions_of(
    given: Declared, resources: Mapping[str, Any], *, environ: Mapping[str, str] | None = None
) -> Definitions:
    """The same of declarations that are together already."""
    environ = os.environ if environ is None else environ
    found = standing(given, environ)
    shared = runner_definitions(found.tables, resources, given=given, environ=environ)
    own = [table_definitions(table, environ=environ) for table in found.tables]
    return Definitions.merge(*own, shared)


def standing(given: Declared, environ: Mapping[str, str]) -> Sound:
    """What of the declarations stands, see `stands`; the log says what is left out, and why."""
    found = stands(given, environ)
    for error in found.mistakes:
        _LOGGER.warning("[%s] %s", error.code, error)
    return found


def table_definitions(
    table: SourceTable, *, environ: Mapping[str, str] | None = None
) -> Definitions:
    """What belongs to one table alone: its assets and their checks."""
    environ = os.environ if environ is None else environ
    table = spread(table, shards_of(environ))
    below = [index_assets(table, _pool(environ), databases_of(environ))] if table.consumers else []
    return Definitions(
        assets=[_source(table), *below],
        asset_checks=[*map(index_checks, [table] if table.indexes else []), source_check(table)],
    )


def runner_definitions(
    tables: Sequence[SourceTable],
    resources: Mapping[str, Any],
    *,
    given: Declared | None = None,
    environ: Mapping[str, str] | None = None,
) -> Definitions:
    """What all tables of the location share: the runner, the hourly jobs and the resources.

    `given` is what the tables were attached from, for those that look for declarations in a module.
    Raises ConfigError for a wrong setting.
    """
    environ = os.environ if environ is None else environ
    laid_out = [spread(table, shards_of(environ)) for table in tables]
    kinds = {consumer_kind(each.kind) for table in laid_out for each in table.consumers}
    reporting = {kind.io_manager: OutcomeIOManager(kind) for kind in kinds if not kind.keeps_index}
    resources = {**reporting, **resources}
    lookout = Lookout(laid_out, scan_seconds_of(environ))
    maintenance = maintenance_jobs(laid_out, resources, runs_kept_of(environ))
    iterations = jobs_of(laid_out, resources, _pool(environ))
    return Definitions(
        jobs=maintenance,
        schedules=hourly(maintenance),
        sensors=[runner_sensor(lookout, iterations), news_sensor(lookout)] if laid_out else [],
        resources=dict(resources),
        executor=named_in_process,
        metadata={TABLES: ObjectMetadataValue(given.everything if given else tuple(tables))},
    )


def _pool(environ: Mapping[str, str]) -> str:
    return clickhouse_pool(*(environ.get(name, "") for name in _CLICKHOUSES))


def scan_seconds_of(environ: Mapping[str, str]) -> int:
    """How often the runner looks when it waits for no commit. Raises ConfigError."""
    seconds = number_of(environ, _SCAN, int, (1, _MOST_SECONDS), unit="whole seconds")
    return SCAN_SECONDS if seconds is None else seconds


def _source(table: SourceTable) -> AssetsDefinition | AssetSpec:
    return source_spec(table) if table.load is None else source_asset(table, table.load)
