"""The Dagster jobs that the runner starts: for one tenant's indexes, and for everything else.

A run of assets is for one partition. A commit that changed many tenants gets one run of an op,
which reports each tenant's materializations; jobs that no index declares run in that op too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from iscp_dagster.location import names
from iscp_dagster.location.assets.io_manager import Outcomes, needed, writer_of
from iscp_dagster.location.assets.iterations import InStep, Iterations, report
from iscp_dagster.location.assets.reporting import Success, iterated, unreported
from iscp_dagster.location.internals import UnresolvedAssetJobDefinition
from iscp_dagster.location.working import working
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.runs.named import DISPATCH_TAG, mark_by_hand
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import Delivery

Startable = UnresolvedAssetJobDefinition | dg.JobDefinition
"""A Dagster job that the runner may start."""
FORGOTTEN = (
    "The ISCP log does not say which tenants the run of dispatch {dispatch} was for: it began no "
    "work, or its history was deleted. Materialize the partitions that you mean, or launch this "
    "job without the tags of that run for all tenants."
)


def sync_job(source: SourceTable) -> UnresolvedAssetJobDefinition:
    """The Dagster job of the declared indexes and triggers; a run selects those that take part."""
    keys = [names.job_key(source, each.name) for each in source.consumers]
    return dg.define_asset_job(
        names.sync_job_name(source),
        selection=dg.AssetSelection.assets(*keys).without_checks(),
        description=f"Brings indexes of `{source.name}` in step, one tenant per run.",
    )


def tenants_job(source: SourceTable, resources: Mapping[str, Any], pool: str) -> dg.JobDefinition:
    """The Dagster job for many tenants, and for jobs that no index declares.

    Started by a person, it brings all tenants in step, or the one that a tag names.
    """

    @dg.op(
        name=f"{names.tenants_job_name(source)}_op",
        out={
            each.name: dg.Out(io_manager_key=consumer_kind(each.kind).io_manager, is_required=False)
            for each in source.consumers
        },
        required_resource_keys=needed(source),
        pool=pool,
    )
    def iterate_tenants(context: dg.OpExecutionContext) -> Iterator[dg.Output[Outcomes]]:
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = _iterations(context, deployment, source)

        def news(served: Sequence[Success]) -> Sequence[Success]:
            """What Dagster has not been told yet: jobs in step are not reported again."""
            in_step = [each.job for each in served if isinstance(each, InStep)]
            brought = [each for each in served if isinstance(each, Delivery)]
            return [*brought, *unreported(context.instance, source, in_step)]

        mark_by_hand(context.instance, context.run)
        with working(deployment, context.run):
            told, failed = iterated(context, iterations, news)
        for consumer in source.consumers:
            if mine := [each for each in told if each.job_name == consumer.name]:
                yield dg.Output(Outcomes(outcomes=mine), output_name=consumer.name)
        report(failed)

    @dg.job(
        name=names.tenants_job_name(source),
        # Bound here, or Dagster copies the sensor to bind them, and warns about its own copy.
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description=f"Brings indexes of `{source.name}` in step, for all due tenants in one run, "
        "and runs the jobs that no index declares. Start it without a tag for all tenants.",
    )
    def iterate_job() -> None:
        iterate_tenants()

    return iterate_job


def _iterations(
    context: dg.OpExecutionContext, deployment: Deployment, source: SourceTable
) -> Iterations:
    """The run's iterations; by hand they are for the tenant that the tag names, else for all.

    A run that executes a dispatched one again has no more tenants than that one had.
    """
    found = Iterations.of(
        context.run,
        context.instance,
        deployment=deployment,
        source=source,
        tenants=(),
        chosen=source.consumers,
        undeclared=True,
        warn=context.log.warning,
        writer=writer_of(context, source),
    )
    if found.dispatch is not None:
        return found
    if tenant := context.run.tags.get(names.TENANT_TAG):
        return replace(found, tenants=[tenant])
    dispatch = context.run.tags.get(DISPATCH_TAG)
    return replace(found, tenants=_repeated(found, dispatch) if dispatch else _everyone(found))


def _repeated(its: Iterations, dispatch: str) -> list[str]:
    """The tenants of the run that is executed again, also when later runs took their jobs."""
    had = its.deployment.log.tenants_of_runs(its.repeats)
    if not had:
        raise dg.Failure(FORGOTTEN.format(dispatch=dispatch), allow_retries=False)
    return sorted(had)


def _everyone(its: Iterations) -> list[str]:
    """All tenants that have rows or jobs."""
    table_id = its.delta_log.table_id()
    return sorted({*its.delta_log.tenants(), *its.deployment.log.tenants(table_id)})


def jobs_of(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], pool: str
) -> list[Startable]:
    """All Dagster jobs that the runner may start."""
    declared = [sync_job(source) for source in sources if source.consumers]
    return [*declared, *(tenants_job(source, resources, pool) for source in sources)]
