"""The IO manager of the deployment's ClickHouse."""

from dagster import ConfigurableIOManagerFactory, ResourceDependency

from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.resources.iscp import Iscp


class ClickHouseTables(ConfigurableIOManagerFactory[ClickHouseIOManager]):
    """Index tables, and tables of people's own frames, in the deployment's ClickHouse."""

    iscp: ResourceDependency[Iscp]

    def create_io_manager(self, context: object) -> ClickHouseIOManager:
        """The object that writes into ClickHouse, in iterations and for Dagster."""
        del context
        return ClickHouseIOManager(self.iscp.deployment)
