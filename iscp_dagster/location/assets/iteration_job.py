"""The Dagster jobs that the runner starts: of a table's indexes, and of its other jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagster import (
    AssetMaterialization,
    AssetSelection,
    DataVersion,
    Failure,
    JobDefinition,
    OpExecutionContext,
    define_asset_job,
    in_process_executor,
    job,
    op,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.build_resources import wrap_resources_for_execution

from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.location.assets.io_manager import delivered
from iscp_dagster.location.assets.iterations import Iterations, report
from iscp_dagster.location.names import (
    TENANT_TAG,
    index_key,
    job_key,
    other_jobs_name,
    sync_job_name,
)
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.publish import Delivery

Startable = UnresolvedAssetJobDefinition | JobDefinition
"""A job that the runner may start."""


def sync_job(source: SourceTable) -> UnresolvedAssetJobDefinition:
    """The job of the table's declared indexes; a run selects those that take part."""
    keys = [index_key(source, index) for index in source.indexes]
    return define_asset_job(
        sync_job_name(source),
        selection=AssetSelection.assets(*keys).without_checks(),
        description=f"Brings indexes of `{source.name}` in step, one tenant a run.",
    )


def other_jobs(source: SourceTable, resources: Mapping[str, Any], pool: str) -> JobDefinition:
    """The job of what was registered for the table without a declaration."""

    @op(name=f"{other_jobs_name(source)}_op", required_resource_keys={"iscp"}, pool=pool)
    def iterate_others(context: OpExecutionContext) -> None:
        tenant = context.run.tags.get(TENANT_TAG)
        if tenant is None:
            # The job has no partitions to choose of.
            message = f"The run names no tenant of {source.name}. Give the run the tag "
            raise Failure(f"{message}{TENANT_TAG}: <tenant>.", allow_retries=False)
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = Iterations.of(
            context.run,
            context.instance,
            deployment=deployment,
            source=source,
            tenants=[tenant],
            undeclared=True,
            warn=context.log.warning,
        )
        failures: list[Failed] = []
        with working(deployment, context.run):
            for outcome in iterations.outcomes():
                if isinstance(outcome, Failed):
                    failures.append(outcome)
                elif isinstance(outcome, Delivery):
                    context.log_event(materialized(deployment, source, outcome))
        report(failures)

    @job(
        name=other_jobs_name(source),
        # Bound here: to bind them itself Dagster copies the sensor, and warns of its own copy.
        resource_defs=wrap_resources_for_execution(resources),
        executor_def=in_process_executor,
        description=f"Runs jobs of `{source.name}` that no index declares; started by the runner.",
    )
    def iterate_job() -> None:
        iterate_others()

    return iterate_job


def materialized(
    deployment: Deployment, source: SourceTable, delivery: Delivery
) -> AssetMaterialization:
    """What tells Dagster of a job that has no asset of its own."""
    return AssetMaterialization(
        asset_key=job_key(source, delivery.claim.key.job_name),
        partition=delivery.tenant,
        metadata=dict(delivered(delivery, deployment.clock)),
        tags={DATA_VERSION_TAG: DataVersion(str(delivery.to.version)).value},
    )


def jobs_of(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], pool: str
) -> list[Startable]:
    """All that the runner may start."""
    declared = [sync_job(source) for source in sources if source.indexes]
    return [*declared, *(other_jobs(source, resources, pool) for source in sources)]
