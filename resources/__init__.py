"""What a deployment configures: where ClickHouse, Spark, the lake and the ISCP log are."""

from __future__ import annotations

import os
from typing import Any

from dagster import EnvVar

from iscp_dagster.batches.factory import tolerates_mismatch
from iscp_dagster.location.resources.clickhouse import ClickHouse
from iscp_dagster.location.resources.index_tables import IndexTables
from iscp_dagster.location.resources.iscp import Iscp
from iscp_dagster.location.resources.lake import Lake
from iscp_dagster.location.resources.log import IscpLog
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.model.kinds import kind_names

STATE_STORE = "ISCP_STATE_STORE"
URLS = "CLICKHOUSE_URLS"


def from_environment() -> dict[str, Any]:
    """The resources by name, addressed by the environment, which `iscp up` sets for its children.

    Addresses may hold passwords: they stay in the environment and out of every run's config.
    """
    iscp = Iscp(
        clickhouse=_clickhouse(),
        lake=Lake(root=EnvVar("ISCP_LAKE")),
        log=IscpLog(url=EnvVar("ISCP_LOG_URL")),
        spark=Spark(remote=EnvVar("SPARK_REMOTE")),
        tolerate_state_mismatch=tolerates_mismatch(os.environ),
        **({"state_store": EnvVar(STATE_STORE)} if STATE_STORE in os.environ else {}),
    )
    tables = {f"{kind}_index": IndexTables(iscp=iscp) for kind in kind_names()}
    return {"iscp": iscp, **tables}


def _clickhouse() -> ClickHouse:
    if os.environ.get(URLS):
        if os.environ.get("CLICKHOUSE_URL"):
            # It must be the first of them then.
            return ClickHouse(url=EnvVar("CLICKHOUSE_URL"), urls=EnvVar(URLS))
        return ClickHouse(urls=EnvVar(URLS))
    return ClickHouse(url=EnvVar("CLICKHOUSE_URL"))
