"""The indexes and triggers of one source table as assets: a run of them is an iteration."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg

from iscp_dagster.location.assets.backfills import list_taken_partitions, take_over
from iscp_dagster.location.assets.data_versions import DataVersions
from iscp_dagster.location.assets.io_manager import get_index_writer, get_required_resources
from iscp_dagster.location.assets.iterations import (
    InStep,
    Iterations,
    Outcome,
    get_run_tenants,
    report,
)
from iscp_dagster.location.assets.metadata import try_read_event_counts
from iscp_dagster.location.assets.provenance import get_view_keys, view_tags
from iscp_dagster.location.assets.reporting import (
    Reported,
    Success,
    agrees,
    build_materializations,
    build_news_events,
    build_observations,
    store_events,
    sync_tenants,
)
from iscp_dagster.location.names import (
    build_partitions_def,
    get_index_op_name,
    get_source_asset_key,
)
from iscp_dagster.location.outs import InOrder, build_asset_out
from iscp_dagster.location.working import renew_run_lease
from iscp_dagster.model.declared.lineage import find_parents
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.runs.named import mark_by_hand
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import PendingCommit


def index_assets(
    source: SourceTable, pool: str, databases: Sequence[str] = ()
) -> dg.AssetsDefinition:
    """All indexes and triggers of `source`; any subset can run, in `pool`, and shares one scan.

    Each is below the source, and a view or trigger of a view below that view's index too.
    `databases` are those that the deployment names for its shards.
    """
    by_name = {each.name: each for each in source.consumers}
    views = get_view_keys(source)

    @dg.multi_asset(
        name=get_index_op_name(source),
        outs={name: build_asset_out(source, each, databases) for name, each in by_name.items()},
        deps=[get_source_asset_key(source)],
        internal_asset_deps={
            name: {get_source_asset_key(source), *filter(None, [views.get(name)])}
            for name in by_name
        },
        partitions_def=build_partitions_def(source),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        required_resource_keys=get_required_resources(source),
        pool=pool,
    )
    def synchronize(context: dg.AssetExecutionContext) -> Iterator[dg.Output[Success]]:
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = Iterations.of(
            context.run,
            context.instance,
            deployment=deployment,
            source=source,
            tenants=_take_over_tenants(context, source, deployment),
            chosen=[
                by_name[name] for name in sorted(context.op_execution_context.selected_output_names)
            ],
            warn=context.log.warning,
            writer=get_index_writer(context, source),
        )
        mark_by_hand(context.instance, context.run)
        with renew_run_lease(deployment, context.run):
            if len(iterations.tenants) > 1:
                # An output of the step would give every tenant what belongs to all of them.
                _, failed = sync_tenants(context, iterations)
            else:
                failed = yield from _sync_tenant(context, iterations)
            done = set(iterations.tenants)
            # Runs of the same backfill that were queued meanwhile.
            while more := set(_take_over_tenants(context, source, deployment)) - done:
                _, wrong = sync_tenants(context, replace(iterations, tenants=sorted(more)))
                failed, done = [*failed, *wrong], done | more
        report(failed)

    return synchronize


def _sync_tenant(
    context: dg.AssetExecutionContext, its: Iterations
) -> Generator[dg.Output[Success], None, list[Outcome]]:
    """Bring one tenant in step; yields the outputs of its jobs, and returns what failed."""
    held = InOrder[dg.Output[Success]](find_parents(its.source), {each.name for each in its.chosen})
    declared = {each.name for each in its.source.consumers}
    views, failed = get_view_keys(its.source), list[Outcome]()
    with _report_in_background(context, its) as reported:
        try:
            for outcome in (each for some in its.outcomes() for each in some):
                reported()
                if not isinstance(outcome, PendingCommit | InStep):
                    failed.append(outcome)
                    store_events(context, build_observations(its.source, [outcome]))
                elif outcome.job_name in declared:
                    output = _build_output(its, outcome, views.get(outcome.job_name))
                    yield from held.put(outcome.job_name, output)
                elif isinstance(outcome, PendingCommit):
                    made = build_materializations(
                        context.instance, its.deployment, its.source, [outcome], its.run_id
                    )
                    store_events(context, made)
        except Exception:
            yield from held.release_rest()
            raise
        yield from held.release_rest()
    return failed


def _build_output(
    its: Iterations, outcome: Success, view: dg.AssetKey | None
) -> dg.Output[Success]:
    return dg.Output(
        outcome,
        output_name=outcome.job_name,
        metadata={**try_read_event_counts(its.deployment, its.source, outcome.job_name)},
        data_version=dg.DataVersion(str(outcome.data_version)),
        # Dagster adds its own tags: of the source, and of a view those that these replace.
        tags=view_tags(view, agrees(outcome)),
    )


@contextmanager
def _report_in_background(
    context: dg.AssetExecutionContext, its: Iterations
) -> Iterator[Callable[[], None]]:
    """Report, in parallel with the iteration, the versions that the runner has not reported.

    Yields a function that returns once Dagster has them: before that, Dagster would record wrongly
    what an index was built from.
    """
    versions = DataVersions(context.instance, its.source, its.delta_log, its.to.version)
    news = build_news_events(its.deployment, versions, its.tenants)
    with ThreadPoolExecutor(1, "reporting versions") as beside:
        reported = beside.submit(_report_versions, context, news)
        yield reported.result
        reported.result()


def _report_versions(context: dg.AssetExecutionContext, news: Sequence[Reported]) -> None:
    store_events(context, news)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def _take_over_tenants(
    context: dg.AssetExecutionContext, source: SourceTable, deployment: Deployment
) -> list[str]:
    """The tenants that the run names, and those that it takes over from its backfill."""
    named, partitions = get_run_tenants(context, source), build_partitions_def(source)
    take_over(context.instance, context.run, partitions, deployment.log)
    return sorted({*named, *list_taken_partitions(context.instance, context.run, partitions)})
