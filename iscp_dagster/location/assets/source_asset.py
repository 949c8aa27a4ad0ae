"""A source table as an asset: loaded when a person materializes it, or only observed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.files import to_spark_path
from iscp_dagster.location.assets.iterations import get_run_partitions
from iscp_dagster.location.assets.metadata import read_log_facts
from iscp_dagster.location.assets.reports.data_versions import (
    AssetEvent,
    DataVersions,
    build_version_event,
)
from iscp_dagster.location.assets.source_check import build_check_evaluation
from iscp_dagster.location.names import get_load_op_name, get_source_asset_key
from iscp_dagster.location.partitions import build_partitions_def, list_partition_tenants
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.table_problems import find_problems
from iscp_dagster.sync.deployment import Deployment

ON_REPLACE_MEANS = {
    "strand": "strand: its jobs stop until a person registers them again",
    "rebuild": "rebuild: its indexes are rebuilt from the new table",
}
"""What happens to a recreated table's jobs, for the asset's metadata."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Load:
    """The argument of a source's `load`, which updates `tenants` in the Delta table at `path`."""

    spark: "SparkSession"
    path: str
    tenants: tuple[str, ...]
    config: Any
    """An instance of the declared `load_config`, or None."""
    log: Any
    """Dagster's logger."""


def build_source_spec(source: SourceTable) -> dg.AssetSpec:
    """The asset's spec; for a table that others write, the whole asset."""
    return dg.AssetSpec(
        get_source_asset_key(source),
        skippable=source.load is not None,
        kinds={"deltalake"},
        description=source.description
        or f"The Delta table `{source.name}`, whose commits its indexes follow.",
        owners=source.owners,
        tags=dict(source.tags),
        group_name=source.database,
        partitions_def=build_partitions_def(source),
        metadata={
            "dagster/table_name": source.name,
            "primary_key": ", ".join(source.keys),
            "tenant_column": source.tenant or "none",
            "on_replace": ON_REPLACE_MEANS[source.on_replace],
            **({"path": dg.MetadataValue.path(source.path)} if source.path else {}),
        },
    )


def build_source_asset(source: SourceTable, load: Callable[[Load], object]) -> dg.AssetsDefinition:
    """The asset whose materialization calls `load` for the requested partitions."""
    config = source.load_config

    @dg.multi_asset(
        name=get_load_op_name(source),
        specs=[build_source_spec(source)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        config_schema=to_dagster_config(config).to_fields_dict() if config else None,
        required_resource_keys={"iscp"},
    )
    def load_source(
        context: dg.AssetExecutionContext,
    ) -> Iterator[AssetEvent | dg.AssetCheckEvaluation]:
        deployment: Deployment = context.resources.iscp.create_deployment()
        partitions = get_run_partitions(context, source)
        tenants = tuple(list_partition_tenants(deployment, source, partitions, to_load=True))
        with hold_run_lease(deployment, context.run):
            with deployment.open_private_session() as spark:
                load(
                    Load(
                        spark=spark,
                        path=to_spark_path(deployment.get_table_path(source)),
                        tenants=tenants,
                        config=config(**context.op_execution_context.op_config) if config else None,
                        log=context.log,
                    )
                )
            delta_log = deployment.make_delta_log(source)
            facts = dict(read_table_facts(delta_log))
            versions = DataVersions(
                context.instance, source, delta_log, delta_log.get_latest_moment().version
            )
            # Not as the step's output, which would give every partition the same version.
            for partition in partitions:
                current = versions.get_current_version(partition)
                yield build_version_event(source, partition, current, facts)
            # Otherwise Dagster would show the table's check as older than the load.
            yield build_check_evaluation(source, find_problems(deployment, source))

    return load_source


def to_dagster_config(model: type[Any]) -> type[dg.Config]:
    """The model as a Dagster Config, which the launchpad shows.

    A declaration may use a plain pydantic model, so that it does not import Dagster.
    """
    return model if issubclass(model, dg.Config) else type(model.__name__, (model, dg.Config), {})


def read_table_facts(delta_log: DeltaLog) -> Mapping[str, Any]:
    """The facts of `read_log_facts`, and the table's size."""
    sizes, orphans = delta_log.get_tenant_sizes(), delta_log.get_unnamed_size()
    return {
        **read_log_facts(delta_log),
        "stored_rows": sum(size.rows or 0 for size in sizes.values()),
        "bytes": sum(size.bytes for size in sizes.values()),
        "tenants": len(sizes),
        **({} if orphans is None else {"rows_without_tenant": orphans.rows or 0}),
    }
