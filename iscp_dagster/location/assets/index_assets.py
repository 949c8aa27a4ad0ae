"""The indexes and triggers of one source table as assets: a run of them is an iteration."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg

from iscp_dagster.location.assets.backfills import take_over, taken
from iscp_dagster.location.assets.data_versions import DataVersions
from iscp_dagster.location.assets.io_manager import needed, writer_of
from iscp_dagster.location.assets.iterations import InStep, Iterations, Outcome, report, tenants_of
from iscp_dagster.location.assets.metadata import events_if_known
from iscp_dagster.location.assets.provenance import view_tags, views_of
from iscp_dagster.location.assets.reporting import (
    Reported,
    Success,
    agrees,
    iterated,
    materializations,
    news_of,
    observations,
    store_events,
)
from iscp_dagster.location.names import indexes_op_name, partitions_of, source_key
from iscp_dagster.location.outs import InOrder, asset_out
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.lineage import parents
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.runs.named import mark_by_hand
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import Delivery


def index_assets(
    source: SourceTable, pool: str, databases: Sequence[str] = ()
) -> dg.AssetsDefinition:
    """All indexes and triggers of `source`; any subset can run, in `pool`, and shares one scan.

    Each is below the source, and a view or trigger of a view below that view's index too.
    `databases` are those that the deployment names for its shards.
    """
    by_name = {each.name: each for each in source.consumers}
    views = views_of(source)

    @dg.multi_asset(
        name=indexes_op_name(source),
        outs={name: asset_out(source, each, databases) for name, each in by_name.items()},
        deps=[source_key(source)],
        internal_asset_deps={
            name: {source_key(source), *filter(None, [views.get(name)])} for name in by_name
        },
        partitions_def=partitions_of(source),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        required_resource_keys=needed(source),
        pool=pool,
    )
    def synchronize(context: dg.AssetExecutionContext) -> Iterator[dg.Output[Success]]:
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = Iterations.of(
            context.run,
            context.instance,
            deployment=deployment,
            source=source,
            tenants=_tenants(context, source, deployment),
            chosen=[
                by_name[name] for name in sorted(context.op_execution_context.selected_output_names)
            ],
            warn=context.log.warning,
            writer=writer_of(context, source),
        )
        mark_by_hand(context.instance, context.run)
        with working(deployment, context.run):
            if len(iterations.tenants) > 1:
                # An output of the step would give every tenant what belongs to all of them.
                _, failed = iterated(context, iterations)
            else:
                failed = yield from _of_one(context, iterations)
            done = set(iterations.tenants)
            # Runs of the same backfill that were queued meanwhile.
            while more := set(_tenants(context, source, deployment)) - done:
                _, wrong = iterated(context, replace(iterations, tenants=sorted(more)))
                failed, done = [*failed, *wrong], done | more
        report(failed)

    return synchronize


def _of_one(
    context: dg.AssetExecutionContext, its: Iterations
) -> Generator[dg.Output[Success], None, list[Outcome]]:
    """Bring one tenant in step; yields the outputs of its jobs, and returns what failed."""
    held = InOrder[dg.Output[Success]](parents(its.source), {each.name for each in its.chosen})
    declared = {each.name for each in its.source.consumers}
    views, failed = views_of(its.source), list[Outcome]()
    with _reporting(context, its) as reported:
        try:
            for outcome in (each for some in its.outcomes() for each in some):
                reported()
                if not isinstance(outcome, Delivery | InStep):
                    failed.append(outcome)
                    store_events(context, observations(its.source, [outcome]))
                elif outcome.job_name in declared:
                    output = _output(its, outcome, views.get(outcome.job_name))
                    yield from held.put(outcome.job_name, output)
                elif isinstance(outcome, Delivery):
                    made = materializations(
                        context.instance, its.deployment, its.source, [outcome], its.run_id
                    )
                    store_events(context, made)
        except Exception:
            yield from held.rest()
            raise
        yield from held.rest()
    return failed


def _output(its: Iterations, outcome: Success, view: dg.AssetKey | None) -> dg.Output[Success]:
    return dg.Output(
        outcome,
        output_name=outcome.job_name,
        metadata={**events_if_known(its.deployment, its.source, outcome.job_name)},
        data_version=dg.DataVersion(str(outcome.data_version)),
        # Dagster adds its own tags: of the source, and of a view those that these replace.
        tags=view_tags(view, agrees(outcome)),
    )


@contextmanager
def _reporting(context: dg.AssetExecutionContext, its: Iterations) -> Iterator[Callable[[], None]]:
    """Report, in parallel with the iteration, the versions that the runner has not reported.

    Yields a function that returns once Dagster has them: before that, Dagster would record wrongly
    what an index was built from.
    """
    versions = DataVersions(context.instance, its.source, its.delta_log, its.to.version)
    news = news_of(its.deployment, versions, its.tenants)
    with ThreadPoolExecutor(1, "reporting versions") as beside:
        reported = beside.submit(_report_versions, context, news)
        yield reported.result
        reported.result()


def _report_versions(context: dg.AssetExecutionContext, news: Sequence[Reported]) -> None:
    store_events(context, news)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def _tenants(
    context: dg.AssetExecutionContext, source: SourceTable, deployment: Deployment
) -> list[str]:
    """The tenants that the run names, and those that it takes over from its backfill."""
    named, partitions = tenants_of(context, source), partitions_of(source)
    take_over(context.instance, context.run, partitions, deployment.log)
    return sorted({*named, *taken(context.instance, context.run, partitions)})
