"""The resources of a deployment that the environment configures."""

from __future__ import annotations

import os
from typing import Any

from dagster import EnvVar

from iscp_dagster.api.environment import parse_bounds
from iscp_dagster.batchstates.factory import is_mismatch_tolerated
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.location.names import CLICKHOUSE_IO_MANAGER
from iscp_dagster.location.resources.iscp import ClickHouse, ClickHouseTables, Iscp, IscpLog, Lake
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.model import variables

_OPTIONAL = {
    "state_store": variables.STATE_STORE,
    "invocations_url": variables.INVOCATIONS_URL,
    "invocations_token": variables.INVOCATIONS_TOKEN,
}
"""The fields of `Iscp` that the environment may leave out."""


def resources_from_environment(
    *, connect_timeout: float = 10, query_timeout: float = 600
) -> dict[str, Any]:
    """The resources by name, from the environment, which `iscp up` sets for its children.

    `iscp` takes its sessions from `spark`, which user-defined assets may use, too. The timeouts are
    ClickHouse's, in seconds. Addresses may contain passwords: they stay in the environment and out
    of every run's config. Raises ConfigError for an invalid setting.
    """
    spark = Spark(remote=EnvVar(variables.SPARK_REMOTE))
    iscp = Iscp(
        clickhouse=_build_clickhouse(connect_timeout=connect_timeout, query_timeout=query_timeout),
        lake=Lake(root=EnvVar(variables.LAKE)),
        log=IscpLog(url=EnvVar(variables.LOG_URL)),
        spark=spark,
        tolerate_state_mismatch=is_mismatch_tolerated(os.environ),
        max_versions=parse_bounds(os.environ).versions,
        max_bytes=parse_bounds(os.environ).bytes,
        event_ids=IdScheme.from_environment(os.environ).text,
        **{option: EnvVar(name) for option, name in _OPTIONAL.items() if name in os.environ},
    )
    return {"iscp": iscp, "spark": spark, CLICKHOUSE_IO_MANAGER: ClickHouseTables(iscp=iscp)}


def _build_clickhouse(**seconds: Any) -> ClickHouse:
    if os.environ.get(variables.CLICKHOUSE_URLS):
        if os.environ.get(variables.CLICKHOUSE_URL):
            # It must then be the first of CLICKHOUSE_URLS.
            return ClickHouse(
                url=EnvVar(variables.CLICKHOUSE_URL),
                urls=EnvVar(variables.CLICKHOUSE_URLS),
                **seconds,
            )
        return ClickHouse(urls=EnvVar(variables.CLICKHOUSE_URLS), **seconds)
    return ClickHouse(url=EnvVar(variables.CLICKHOUSE_URL), **seconds)
