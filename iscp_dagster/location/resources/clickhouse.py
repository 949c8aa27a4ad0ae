"""Which ClickHouse holds the index tables."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field

from iscp_dagster.clickhouse.connect.endpoint import Endpoint, endpoints


class ClickHouse(ConfigurableResource[Endpoint]):
    """A ClickHouse server, cluster or cloud service, or several, by their HTTP interfaces."""

    url: str = Field(
        default="", description="http[s]://[user:password@]host[:port][/?database=NAME]"
    )
    urls: str = Field(
        default="", description="Several of them, for sharded indexes; the first is `url`."
    )
    connect_timeout: float = Field(default=10, description="Seconds.")
    query_timeout: float = Field(default=600, description="Seconds.")

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The parsed addresses, by shard. Raises ConfigError for a malformed one."""
        return endpoints(
            self.url,
            self.urls,
            connect_timeout=self.connect_timeout,
            query_timeout=self.query_timeout,
        )
