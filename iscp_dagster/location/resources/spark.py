"""Which Spark reads the source tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from iscp_dagster.spark.session import create_private_session, get_shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Spark(LazyPySparkResource):
    """PySpark over Spark Connect: a thin client here, the work on the server.

    `spark_session` is a private session of the run, which ends with it.
    """

    remote: str = Field(description="sc://host:port[/;token=...]")
    spark_config: dict[str, Any] = Field(default={}, description="Settings of the session.")

    def _init_session(self) -> None:
        """Connect at first use. Raises UnavailableError if nothing answers."""
        if self._spark_session is None:
            self._spark_session = self.open_private_session()

    def open_private_session(self) -> SparkSession:
        """A new session. Raises UnavailableError if nothing answers."""
        return create_private_session(self.remote, self.spark_config)

    def open_shared_session(self) -> SparkSession:
        """The session of all runs, for the project's own reads. Raises UnavailableError."""
        return get_shared_session(self.remote, self.spark_config)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Release the run's own session."""
        del context
        if self._spark_session is not None:
            self._spark_session.stop()
