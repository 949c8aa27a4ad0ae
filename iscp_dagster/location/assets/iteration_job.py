"""The Dagster jobs that the runner starts: for one tenant's indexes, and for everything else.

A run of assets is for one partition. A commit that changed many tenants gets one run of an op,
which reports each tenant's materializations; jobs that no index declares run in that op too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetMaterialization,
    AssetSelection,
    DagsterInstance,
    DataVersion,
    JobDefinition,
    OpExecutionContext,
    Out,
    Output,
    define_asset_job,
    in_process_executor,
    job,
    op,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.build_resources import wrap_resources_for_execution

from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.location.assets.data_versions import DataVersions
from iscp_dagster.location.assets.io_manager import Stored, delivered
from iscp_dagster.location.assets.iterations import InStep, Iterations, report
from iscp_dagster.location.assets.provenance import provenance
from iscp_dagster.location.names import (
    TENANT_TAG,
    index_key,
    io_manager_key,
    job_key,
    sync_job_name,
    tenants_job_name,
)
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.publish import Delivery

Startable = UnresolvedAssetJobDefinition | JobDefinition
"""A Dagster job that the runner may start."""


def sync_job(source: SourceTable) -> UnresolvedAssetJobDefinition:
    """The Dagster job of the table's declared indexes; a run selects those that take part."""
    keys = [index_key(source, index) for index in source.indexes]
    return define_asset_job(
        sync_job_name(source),
        selection=AssetSelection.assets(*keys).without_checks(),
        description=f"Brings indexes of `{source.name}` in step, one tenant a run.",
    )


def tenants_job(source: SourceTable, resources: Mapping[str, Any], pool: str) -> JobDefinition:
    """The Dagster job for many tenants, and for jobs that no index declares.

    Started by a person, it brings all tenants in step, or the one that a tag names.
    """

    @op(
        name=f"{tenants_job_name(source)}_op",
        out={index.name: _out(index) for index in source.indexes},
        required_resource_keys={"iscp"},
        pool=pool,
    )
    def iterate_tenants(context: OpExecutionContext) -> Iterator[Output[Stored]]:
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = _iterations(context, deployment, source)
        with working(deployment, context.run):
            outcomes = list(iterations.outcomes())
            # Rows are searchable by now, so reporting them to Dagster may take its time.
            done = [each for each in outcomes if isinstance(each, Delivery)]
            tenants = {each.tenant for each in done}
            versions = DataVersions(
                context.instance, source, iterations.delta_log, iterations.to.version
            )
            for event in versions.news(sorted(tenants)):
                context.log_event(event)
            for name, stored in stored_of(context.instance, source, done, context.run_id):
                yield Output(stored, output_name=name)
            for event in of_undeclared(source, done):
                context.log_event(event)
        report([each for each in outcomes if isinstance(each, Failed)])

    @job(
        name=tenants_job_name(source),
        # Bound here, or Dagster copies the sensor to bind them, and warns about its own copy.
        resource_defs=wrap_resources_for_execution(resources),
        executor_def=in_process_executor,
        description=f"Brings indexes of `{source.name}` in step, for all due tenants in one run, "
        "and runs the jobs that no index declares. Start it without a tag for all tenants.",
    )
    def iterate_job() -> None:
        iterate_tenants()

    return iterate_job


def _out(index: Index) -> Out:
    return Out(io_manager_key=io_manager_key(index.kind), is_required=False)


def _iterations(
    context: OpExecutionContext, deployment: Deployment, source: SourceTable
) -> Iterations:
    """The run's iterations; started by hand, for the tenant that its tag names, else for all."""
    found = Iterations.of(
        context.run,
        context.instance,
        deployment=deployment,
        source=source,
        tenants=(),
        chosen=source.indexes,
        undeclared=True,
        warn=context.log.warning,
    )
    if found.dispatch is not None:
        return found
    tenant = context.run.tags.get(TENANT_TAG)
    return replace(found, tenants=[tenant] if tenant else _everyone(found))


def _everyone(its: Iterations) -> list[str]:
    """The tenants of the run that is executed again; else all that have rows or jobs."""
    log, table_id = its.deployment.log, its.delta_log.table_id()
    if its.repeats:
        jobs = log.jobs(table_id=table_id)
        had = {job.key.tenant for job in jobs if job.run_id in its.repeats}
        if had:
            return sorted(had)
    return sorted({*its.delta_log.tenants(), *log.tenants(table_id)})


def stored_of(
    instance: DagsterInstance,
    source: SourceTable,
    outcomes: Sequence[Delivery | InStep],
    run_id: str,
) -> Iterator[tuple[str, Stored]]:
    """The declared indexes that a run of many tenants brought in step, by name."""
    made_of = provenance(instance, source, {each.tenant for each in outcomes}, run_id)
    for index in source.indexes:
        mine = [each for each in outcomes if each.job_name == index.name]
        if mine:
            yield index.name, Stored(key=index_key(source, index), outcomes=mine, tags=made_of)


def of_undeclared(
    source: SourceTable, outcomes: Sequence[Delivery | InStep]
) -> Iterator[AssetMaterialization]:
    """Materializations of the jobs that have no asset of their own."""
    declared = {index.name for index in source.indexes}
    for each in outcomes:
        if isinstance(each, Delivery) and each.job_name not in declared:
            yield materialized(source, each)


def materialized(source: SourceTable, delivery: Delivery) -> AssetMaterialization:
    """The materialization of a job that has no asset of its own."""
    return AssetMaterialization(
        asset_key=job_key(source, delivery.claim.key.job_name),
        partition=delivery.tenant,
        metadata=dict(delivered(delivery)),
        tags={DATA_VERSION_TAG: DataVersion(str(delivery.to.version)).value},
    )


def jobs_of(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], pool: str
) -> list[Startable]:
    """All Dagster jobs that the runner may start."""
    declared = [sync_job(source) for source in sources if source.indexes]
    return [*declared, *(tenants_job(source, resources, pool) for source in sources)]
