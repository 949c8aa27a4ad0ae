"""Which Spark reads the source tables."""

from __future__ import annotations

from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from iscp_dagster.spark.session import connected


class Spark(LazyPySparkResource):
    """PySpark over Spark Connect: a thin client here, the work on the server."""

    remote: str = Field(description="sc://host:port[/;token=...]")
    spark_config: dict[str, Any] = Field(default={}, description="Settings of the session.")

    def _init_session(self) -> None:
        """Connect at first use. Raises UnavailableError when nothing answers."""
        if self._spark_session is None:
            self._spark_session = connected(self.remote, self.spark_config)
