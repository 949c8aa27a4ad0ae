"""The services of a deployment, as the engine takes them."""

from dagster import ConfigurableResource, ResourceDependency

from iscp_dagster.engine.context import Engine
from resources.clickhouse import ClickHouse
from resources.lake import Lake
from resources.log import IscpLog
from resources.spark import Spark


class Iscp(ConfigurableResource[Engine]):
    """What assets, sensors, checks and IO managers work with."""

    clickhouse: ResourceDependency[ClickHouse]
    lake: ResourceDependency[Lake]
    log: ResourceDependency[IscpLog]
    spark: ResourceDependency[Spark]

    def engine(self) -> Engine:
        """Cheap: nothing is connected before it is used."""
        return Engine(
            endpoint=self.clickhouse.endpoint(),
            log=self.log.open(),
            spark=lambda: self.spark.spark_session,
            lake=self.lake.root,
        )
