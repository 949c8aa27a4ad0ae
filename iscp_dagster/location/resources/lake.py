"""Where source tables without a path of their own are."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field


class Lake(ConfigurableResource[str]):
    """The root of the lake: `database/table` below it is a source table."""

    root: str = Field(description="A folder or a URL that Spark and delta-rs both read.")
