"""A source table as an asset: loaded when a person materializes it, or observed only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.files import spark_path
from iscp_dagster.location.assets.data_versions import AssetEvent, DataVersions, version_event
from iscp_dagster.location.assets.iterations import tenants_of
from iscp_dagster.location.assets.metadata import log_facts
from iscp_dagster.location.assets.source_check import evaluation
from iscp_dagster.location.names import load_op_name, partitions_of, source_key
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.table_problems import problems_of
from iscp_dagster.sync.deployment import Deployment

ON_REPLACE_MEANS = {
    "strand": "strand: its jobs stop until a person registers them again",
    "rebuild": "rebuild: its indexes are rebuilt from the new table",
}
"""What happens to the jobs of a table that is recreated, for the asset's metadata."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a source's `load` gets to bring `tenants` up to date in the Delta table at `path`."""

    spark: "SparkSession"
    path: str
    tenants: tuple[str, ...]
    config: Any
    """An instance of the declared `load_config`, or None."""
    log: Any
    """Dagster's logger."""


def source_spec(source: SourceTable) -> dg.AssetSpec:
    """The asset's spec; for a table that others write, it is the whole asset."""
    return dg.AssetSpec(
        source_key(source),
        skippable=source.load is not None,
        kinds={"deltalake"},
        description=source.description
        or f"The Delta table `{source.name}`, whose commits its indexes follow.",
        owners=source.owners,
        tags=dict(source.tags),
        group_name=source.database,
        partitions_def=partitions_of(source),
        metadata={
            "dagster/table_name": source.name,
            "primary_key": ", ".join(source.keys),
            "tenant_column": source.tenant or "none",
            "on_replace": ON_REPLACE_MEANS[source.on_replace],
            **({"path": dg.MetadataValue.path(source.path)} if source.path else {}),
        },
    )


def source_asset(source: SourceTable, load: Callable[[Load], object]) -> dg.AssetsDefinition:
    """The asset whose materialization calls `load` for the partitions asked for."""
    config = source.load_config

    @dg.multi_asset(
        name=load_op_name(source),
        specs=[source_spec(source)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        config_schema=offered(config).to_fields_dict() if config else None,
        required_resource_keys={"iscp"},
    )
    def load_source(
        context: dg.AssetExecutionContext,
    ) -> Iterator[AssetEvent | dg.AssetCheckEvaluation]:
        deployment: Deployment = context.resources.iscp.deployment()
        tenants = tuple(tenants_of(context, source))
        with working(deployment, context.run):
            with deployment.users_session() as spark:
                load(
                    Load(
                        spark=spark,
                        path=spark_path(deployment.path(source)),
                        tenants=tenants,
                        config=config(**context.op_execution_context.op_config) if config else None,
                        log=context.log,
                    )
                )
            delta_log = deployment.delta_log(source)
            facts = dict(table_facts(delta_log))
            versions = DataVersions(context.instance, source, delta_log, delta_log.latest().version)
            # Not as the step's result, which would give every tenant the same version.
            for tenant in tenants:
                current = versions.current(tenant)
                yield version_event(source, tenant, current, facts)
            # Otherwise Dagster would show the table's check as older than what was just loaded.
            yield evaluation(source, problems_of(deployment, source))

    return load_source


def offered(model: type[Any]) -> type[dg.Config]:
    """The model as a Dagster Config, which the launchpad shows.

    A declaration may use a plain pydantic model, so that reading it does not import Dagster.
    """
    return model if issubclass(model, dg.Config) else type(model.__name__, (model, dg.Config), {})


def table_facts(delta_log: DeltaLog) -> Mapping[str, Any]:
    """The facts of `log_facts`, and the table's size."""
    sizes, orphans = delta_log.tenant_sizes(), delta_log.unnamed()
    return {
        **log_facts(delta_log),
        "stored_rows": sum(size.rows or 0 for size in sizes.values()),
        "bytes": sum(size.bytes for size in sizes.values()),
        "tenants": len(sizes),
        **({} if orphans is None else {"rows_without_tenant": orphans.rows or 0}),
    }
