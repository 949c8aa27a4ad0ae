"""The services of a `Deployment`, and the IO manager of its ClickHouse."""

from functools import lru_cache

from dagster import ConfigurableIOManagerFactory, ConfigurableResource, ResourceDependency
from pydantic import Field

from iscp_dagster.api.wiring import wire_deployment
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, parse_endpoints
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.sync.bounds import DEFAULT_BOUNDS, IterationBounds
from iscp_dagster.sync.deployment import Deployment


class Lake(ConfigurableResource[str]):
    """The root of the lake: `database/table` below it is a source table."""

    root: str = Field(description="A folder or a URL that Spark and delta-rs both read.")


class ClickHouse(ConfigurableResource[ClickHouseEndpoint]):
    """One or more ClickHouse servers, clusters or cloud services, by their HTTP interfaces."""

    url: str = Field(
        default="", description="http[s]://[user:password@]host[:port][/?database=NAME]"
    )
    urls: str = Field(
        default="", description="Several of them, for sharded indexes; the first is `url`."
    )
    connect_timeout: float = Field(default=10, description="Seconds.")
    query_timeout: float = Field(default=600, description="Seconds.")

    def parse_endpoints(self) -> tuple[ClickHouseEndpoint, ...]:
        """The parsed addresses, by shard. Raises ConfigError for a malformed one."""
        return parse_endpoints(
            self.url,
            self.urls,
            connect_timeout=self.connect_timeout,
            query_timeout=self.query_timeout,
        )


class IscpLog(ConfigurableResource[SqlLog]):
    """The ISCP log in a SQL database: SQLite for one machine, PostgreSQL in production."""

    url: str = Field(description="A SQLAlchemy URL: sqlite:///file, postgresql+psycopg://...")

    def open(self) -> SqlLog:
        """The log; the first use in a process creates its tables."""
        return _open_log(self.url)


@lru_cache(maxsize=4)
def _open_log(url: str) -> SqlLog:
    log = SqlLog(url, actor="dagster")
    log.ensure()
    return log


class Iscp(ConfigurableResource[Deployment]):
    """What assets, sensors, checks and IO managers work with."""

    clickhouse: ResourceDependency[ClickHouse]
    lake: ResourceDependency[Lake]
    log: ResourceDependency[IscpLog]
    spark: ResourceDependency[Spark]
    state_store: str = Field(
        default="sql",
        description="Where batch states are kept: sql (in the ISCP log), keepermap, memory, or a "
        "database URL.",
    )
    tolerate_state_mismatch: bool = Field(
        default=False,
        description="Skip commits before the recorded batch instead of stopping the job, for "
        "example after restoring only the ISCP log from a backup.",
    )

    max_versions: int = Field(
        default=DEFAULT_BOUNDS.versions,
        description="The most versions of one iteration; a job may set fewer.",
    )
    max_bytes: int = Field(
        default=DEFAULT_BOUNDS.bytes,
        description="The most bytes of one iteration, as written in the lake.",
    )

    event_ids: str = Field(
        default="",
        description="How the ids of triggers' events are made, such as "
        "algorithm=sha256,prefix=prod_eu,form=hex; each part may be left out.",
    )

    invocations_url: str = Field(
        default="", description="The runtime that invokes service consumers' handlers."
    )
    invocations_token: str = Field(default="", description="The bearer token that it requires.")

    def create_deployment(self) -> Deployment:
        """Make the deployment. Cheap: services are connected at first use."""
        return wire_deployment(
            shards=self.clickhouse.parse_endpoints(),
            log=self.log.open(),
            log_url=self.log.url,
            state_store=self.state_store,
            tolerate_state_mismatch=self.tolerate_state_mismatch,
            shared=self.spark.open_shared_session,
            private=self.spark.open_private_session,
            lake=self.lake.root,
            bounds=IterationBounds(versions=self.max_versions, bytes=self.max_bytes),
            event_ids=IdScheme.parse(self.event_ids),
            invocations=(self.invocations_url, self.invocations_token),
        )


class ClickHouseTables(ConfigurableIOManagerFactory[ClickHouseIOManager]):
    """Index tables, and tables of user-defined assets, in the deployment's ClickHouse."""

    iscp: ResourceDependency[Iscp]

    def create_io_manager(self, context: object) -> ClickHouseIOManager:
        """The object that writes into ClickHouse, for iterations and for Dagster."""
        del context
        return ClickHouseIOManager(self.iscp.create_deployment)
