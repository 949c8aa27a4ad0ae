"""The Dagster jobs that the runner starts: for one tenant's indexes, and for everything else.

A run of assets has one partition. A commit that changed several tenants gets one run of an op,
which reports each tenant's materializations; jobs that no index declares run in that op too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from iscp_dagster.location import names
from iscp_dagster.location.assets.io_manager import (
    ConsumerOutcomes,
    get_index_writer,
    get_required_resources,
)
from iscp_dagster.location.assets.iterations import (
    InStepJob,
    Iterations,
    ServedOutcome,
    raise_failures,
)
from iscp_dagster.location.assets.reports.reporting import find_unreported_jobs, sync_tenants
from iscp_dagster.location.internals import UnresolvedAssetJobDefinition
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.runs.run_names import DISPATCH_TAG, tag_if_by_hand
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery

Startable = UnresolvedAssetJobDefinition | dg.JobDefinition
"""A Dagster job that the runner may start."""
FORGOTTEN = (
    "The ISCP log does not say which tenants the run of dispatch {dispatch} was for: it began no "
    "work, or its history was deleted. Materialize the partitions that you mean, or launch this "
    "job without the tags of that run for all tenants."
)


def build_sync_job(source: SourceTable) -> UnresolvedAssetJobDefinition:
    """The Dagster job of the declared indexes and triggers; a run selects some of them."""
    keys = [names.get_job_asset_key(source, consumer.name) for consumer in source.consumers]
    return dg.define_asset_job(
        names.get_sync_job_name(source),
        selection=dg.AssetSelection.assets(*keys).without_checks(),
        description=f"Brings indexes of `{source.name}` in step, one tenant per run.",
    )


def build_batch_sync_job(
    source: SourceTable, resources: Mapping[str, Any], pool: str
) -> dg.JobDefinition:
    """The Dagster job for several tenants, and for jobs that no index declares.

    Started by a person, it brings all tenants in step, or only the tenant in a tag.
    """

    @dg.op(
        name=f"{names.get_batch_sync_job_name(source)}_op",
        out={
            consumer.name: dg.Out(
                io_manager_key=get_consumer_kind(consumer.kind).io_manager, is_required=False
            )
            for consumer in source.consumers
        },
        required_resource_keys=get_required_resources(source),
        pool=pool,
    )
    def iterate_tenants(context: dg.OpExecutionContext) -> Iterator[dg.Output[ConsumerOutcomes]]:
        deployment: Deployment = context.resources.iscp.create_deployment()
        iterations = _build_iterations(context, deployment, source)

        def select_unreported(served: Sequence[ServedOutcome]) -> Sequence[ServedOutcome]:
            """The outcomes that Dagster does not have yet: jobs in step are not reported again."""
            in_step = [outcome.job for outcome in served if isinstance(outcome, InStepJob)]
            delivered = [outcome for outcome in served if isinstance(outcome, RowDelivery)]
            return [*delivered, *find_unreported_jobs(context.instance, source, in_step)]

        tag_if_by_hand(context.instance, context.run)
        with hold_run_lease(deployment, context.run):
            reported, failed = sync_tenants(context, iterations, select_unreported)
        for consumer in source.consumers:
            if outcomes := [outcome for outcome in reported if outcome.job_name == consumer.name]:
                yield dg.Output(ConsumerOutcomes(outcomes=outcomes), output_name=consumer.name)
        raise_failures(failed)

    @dg.job(
        name=names.get_batch_sync_job_name(source),
        # Bound here, or Dagster copies the sensor to bind them, and warns about the copy.
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description=f"Brings indexes of `{source.name}` in step, for all due tenants in one run, "
        "and runs the jobs that no index declares. Start it without a tag for all tenants.",
    )
    def iterate_job() -> None:
        iterate_tenants()

    return iterate_job


def _build_iterations(
    context: dg.OpExecutionContext, deployment: Deployment, source: SourceTable
) -> Iterations:
    """The run's iterations; by hand for the tenant in the tag, or for all tenants.

    A re-execution of a dispatched run has only its tenants.
    """
    iterations = Iterations.from_run(
        context.run,
        context.instance,
        deployment=deployment,
        source=source,
        tenants=(),
        consumers=source.consumers,
        undeclared=True,
        warn=context.log.warning,
        writer=get_index_writer(context, source),
    )
    if iterations.dispatch is not None:
        return iterations
    if tenant := context.run.tags.get(names.TENANT_TAG):
        return replace(iterations, tenants=[tenant])
    dispatch = context.run.tags.get(DISPATCH_TAG)
    return replace(
        iterations,
        tenants=_read_repeated_tenants(iterations, dispatch)
        if dispatch
        else _list_all_tenants(iterations),
    )


def _read_repeated_tenants(iterations: Iterations, dispatch: str) -> list[str]:
    """The tenants of the run that is re-executed, even if later runs took their jobs."""
    tenants = iterations.deployment.log.read_run_tenants(iterations.repeats)
    if not tenants:
        raise dg.Failure(FORGOTTEN.format(dispatch=dispatch), allow_retries=False)
    return sorted(tenants)


def _list_all_tenants(iterations: Iterations) -> list[str]:
    """All tenants with rows or jobs."""
    table_id = iterations.delta_log.get_table_id()
    return sorted(
        {*iterations.delta_log.list_tenants(), *iterations.deployment.log.list_tenants(table_id)}
    )


def build_startable_jobs(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], pool: str
) -> list[Startable]:
    """All Dagster jobs that the runner may start."""
    declared = [build_sync_job(source) for source in sources if source.consumers]
    return [*declared, *(build_batch_sync_job(source, resources, pool) for source in sources)]
