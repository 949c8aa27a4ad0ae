"""Which ClickHouse holds the index tables."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field

from iscp_dagster.clickhouse.endpoint import Endpoint


class ClickHouse(ConfigurableResource[Endpoint]):
    """A ClickHouse server, cluster or cloud service, by its HTTP interface."""

    url: str = Field(description="http[s]://[user:password@]host[:port]")
    connect_timeout: float = Field(default=10, description="Seconds.")
    query_timeout: float = Field(default=600, description="Seconds.")

    def endpoint(self) -> Endpoint:
        """The parsed address. Raises ConfigError for a malformed one."""
        return Endpoint.parse(
            self.url, connect_timeout=self.connect_timeout, query_timeout=self.query_timeout
        )
