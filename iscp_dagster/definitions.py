"""The code location: every table that `assets` declares, as `resources` configures it."""

from __future__ import annotations

import os

from iscp_dagster.api.discovery import declared
from iscp_dagster.api.environment import databases_of
from iscp_dagster.location.build import build_definitions
from iscp_dagster.location.names import clickhouse_pool
from iscp_dagster.location.sensor.runner import SCAN_SECONDS
from iscp_dagster.model.imports import imported

CLICKHOUSES = ("CLICKHOUSE_URL", "CLICKHOUSE_URLS")

defs = build_definitions(
    declared(os.environ),
    imported("resources").from_environment(),
    pool=clickhouse_pool(*(os.environ.get(name, "") for name in CLICKHOUSES)),
    databases=databases_of(os.environ),
    scan_seconds=int(os.environ.get("ISCP_SCAN_SECONDS", SCAN_SECONDS)),
)
