"""What this deployment configures: ClickHouse, Spark, the lake and the ISCP log."""

from typing import Any

from iscp_dagster import resources_from_environment


def from_environment() -> dict[str, Any]:
    """The resources by name, for `build_definitions`."""
    return resources_from_environment()
