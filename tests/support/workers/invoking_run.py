"""A run of a table's service consumer, in a process that tests kill."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from iscp_dagster import ServiceConsumer, SourceTable
from iscp_dagster.serviceconsumers.runtime_client import open_runtime
from support.lake.delta_tables import Table, deployment_at
from support.spark.fake_spark import near

NOWHERE = "http://127.0.0.1:9"
"""No index takes part, so no ClickHouse is needed."""


def table_at(folder: Path, name: str, endpoint: str, runtime: str, session: Any) -> Table:
    """Return the table with its service consumer, which gets two rows an invocation."""
    booked = ServiceConsumer(endpoint, handler="Trades/booked", name="booked", rows=2)
    source = SourceTable(name, key="id", tenant="tenant", services=[booked])
    services = {"open_runtime": lambda: open_runtime(runtime)}
    return Table(deployment_at(NOWHERE, session, folder, **services), source)


def main(folder: str, name: str, endpoint: str, runtime: str, *tenants: str) -> None:
    with near() as session:
        table = table_at(Path(folder), name, endpoint, runtime, session)
        table.run(table.iteration(*tenants), "killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
