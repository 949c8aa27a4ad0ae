"""The services that make up a `Deployment`."""

from dagster import ConfigurableResource, ResourceDependency
from pydantic import Field

from iscp_dagster.api.wiring import wired
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.location.resources.clickhouse import ClickHouse
from iscp_dagster.location.resources.lake import Lake
from iscp_dagster.location.resources.log import IscpLog
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.sync.bounds import DEFAULT_BOUNDS, Bounds
from iscp_dagster.sync.deployment import Deployment


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
        description="The most versions of one iteration; a job may ask for fewer.",
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
    invocations_token: str = Field(default="", description="The bearer token that it asks for.")

    def deployment(self) -> Deployment:
        """Make the deployment. Cheap: nothing is connected before it is used."""
        return wired(
            shards=self.clickhouse.endpoints(),
            log=self.log.open(),
            log_url=self.log.url,
            state_store=self.state_store,
            tolerate_state_mismatch=self.tolerate_state_mismatch,
            shared=self.spark.shared,
            private=self.spark.private,
            lake=self.lake.root,
            bounds=Bounds(versions=self.max_versions, bytes=self.max_bytes),
            event_ids=IdScheme.parse(self.event_ids),
            invocations=(self.invocations_url, self.invocations_token),
        )
