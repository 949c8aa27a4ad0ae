"""The IO managers that keep index tables."""

from dagster import ConfigurableIOManagerFactory, ResourceDependency

from iscp_dagster.location.assets.io_manager import IndexIOManager
from iscp_dagster.location.resources.iscp import Iscp


class IndexTables(ConfigurableIOManagerFactory[IndexIOManager]):
    """Index tables in the deployment's ClickHouse."""

    iscp: ResourceDependency[Iscp]

    def create_io_manager(self, context: object) -> IndexIOManager:
        del context
        return IndexIOManager(self.iscp.deployment)
