"""The indexes and triggers of one source table as assets, whose runs are iterations."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg

from iscp_dagster.location.assets.backfills import list_taken_partitions, take_over_queued_runs
from iscp_dagster.location.assets.io_manager import get_index_writer, get_required_resources
from iscp_dagster.location.assets.iterations import (
    InStepJob,
    Iterations,
    JobOutcome,
    ServedOutcome,
    get_agreed_version,
    get_run_partitions,
    raise_failures,
)
from iscp_dagster.location.assets.metadata import try_read_event_counts
from iscp_dagster.location.assets.reports.data_versions import DataVersions
from iscp_dagster.location.assets.reports.provenance import build_view_tags, get_view_keys
from iscp_dagster.location.assets.reports.reporting import (
    ReportedEvent,
    build_materializations,
    build_news_events,
    build_observations,
    store_events,
    sync_tenants,
)
from iscp_dagster.location.names import (
    get_index_op_name,
    get_source_asset_key,
)
from iscp_dagster.location.outs import ParentFirstOutputs, build_asset_out
from iscp_dagster.location.partitions import build_partitions_def, list_partition_tenants
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.model.declared.lineage import find_parents
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.runs.run_names import tag_if_by_hand
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery


def build_index_assets(
    source: SourceTable, pool: str, databases: Sequence[str] = ()
) -> dg.AssetsDefinition:
    """All indexes and triggers of `source`; any subset can run, in `pool`, and shares one scan.

    Each is downstream of the source; a view or trigger of a view, also of that view's index.
    `databases` are the deployment's databases by shard.
    """
    by_name = {consumer.name: consumer for consumer in source.consumers}
    views = get_view_keys(source)

    @dg.multi_asset(
        name=get_index_op_name(source),
        outs={
            name: build_asset_out(source, consumer, databases) for name, consumer in by_name.items()
        },
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
    def synchronize(context: dg.AssetExecutionContext) -> Iterator[dg.Output[ServedOutcome]]:
        deployment: Deployment = context.resources.iscp.create_deployment()
        iterations = Iterations.from_run(
            context.run,
            context.instance,
            deployment=deployment,
            source=source,
            tenants=_take_over_tenants(context, source, deployment),
            consumers=[
                by_name[name] for name in sorted(context.op_execution_context.selected_output_names)
            ],
            warn=context.log.warning,
            writer=get_index_writer(context, source),
        )
        tag_if_by_hand(context.instance, context.run)
        with hold_run_lease(deployment, context.run):
            if source.buckets or len(iterations.tenants) > 1:
                # An output of the step would give every tenant the metadata of all.
                _, failed = sync_tenants(context, iterations)
            else:
                failed = yield from _sync_tenant(context, iterations)
            synced = set(iterations.tenants)
            # Take over runs of the same backfill that were queued meanwhile.
            while added := set(_take_over_tenants(context, source, deployment)) - synced:
                _, added_failed = sync_tenants(context, replace(iterations, tenants=sorted(added)))
                failed, synced = [*failed, *added_failed], synced | added
        raise_failures(failed)

    return synchronize


def _sync_tenant(
    context: dg.AssetExecutionContext, iterations: Iterations
) -> Generator[dg.Output[ServedOutcome], None, list[JobOutcome]]:
    """Bring one tenant in step; yields the outputs of its jobs, and returns the failures."""
    outputs = ParentFirstOutputs[dg.Output[ServedOutcome]](
        find_parents(iterations.source), {consumer.name for consumer in iterations.consumers}
    )
    declared = {consumer.name for consumer in iterations.source.consumers}
    views, failed = get_view_keys(iterations.source), list[JobOutcome]()
    with _report_versions_in_background(context, iterations) as wait_for_report:
        try:
            for outcome in (
                outcome for outcomes in iterations.iterate_jobs() for outcome in outcomes
            ):
                wait_for_report()
                if not isinstance(outcome, RowDelivery | InStepJob):
                    failed.append(outcome)
                    store_events(context, build_observations(iterations.source, [outcome]))
                elif outcome.job_name in declared:
                    output = _build_output(iterations, outcome, views.get(outcome.job_name))
                    yield from outputs.put(outcome.job_name, output)
                elif isinstance(outcome, RowDelivery):
                    materializations = build_materializations(
                        context.instance,
                        iterations.deployment,
                        iterations.source,
                        [outcome],
                        iterations.run_id,
                    )
                    store_events(context, materializations)
        except Exception:
            yield from outputs.release_rest()
            raise
        yield from outputs.release_rest()
    return failed


def _build_output(
    iterations: Iterations, outcome: ServedOutcome, view: dg.AssetKey | None
) -> dg.Output[ServedOutcome]:
    counts = try_read_event_counts(iterations.deployment, iterations.source, outcome.job_name)
    return dg.Output(
        outcome,
        output_name=outcome.job_name,
        metadata={**counts},
        data_version=dg.DataVersion(str(outcome.data_version)),
        # These replace the tags of the view that Dagster adds; it adds those of the source, too.
        tags=build_view_tags(view, get_agreed_version(outcome)),
    )


@contextmanager
def _report_versions_in_background(
    context: dg.AssetExecutionContext, iterations: Iterations
) -> Iterator[Callable[[], None]]:
    """Report, in parallel with the iteration, the versions that the runner has not reported.

    Yields a function that returns once Dagster has them: before that, Dagster would record the
    wrong versions that an index was built from.
    """
    versions = DataVersions(
        context.instance, iterations.source, iterations.delta_log, iterations.to.version
    )
    news = build_news_events(iterations.deployment, versions, iterations.tenants)
    with ThreadPoolExecutor(1, "reporting versions") as executor:
        future = executor.submit(_report_versions, context, news)
        yield future.result
        future.result()


def _report_versions(context: dg.AssetExecutionContext, news: Sequence[ReportedEvent]) -> None:
    store_events(context, news)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def _take_over_tenants(
    context: dg.AssetExecutionContext, source: SourceTable, deployment: Deployment
) -> list[str]:
    """The tenants of the run, and of the runs that it takes over from its backfill."""
    definition = build_partitions_def(source)
    partitions = set(get_run_partitions(context, source))
    take_over_queued_runs(context.instance, context.run, definition, deployment.log)
    partitions |= {*list_taken_partitions(context.instance, context.run, definition)}
    return list_partition_tenants(deployment, source, partitions)
