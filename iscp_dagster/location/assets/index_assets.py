"""The indexes of one source table as assets: a run of them is an iteration."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from dagster import (
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    BackfillPolicy,
    DataVersion,
    Output,
    multi_asset,
)

from iscp_dagster.location.assets.backfills import take_over, taken
from iscp_dagster.location.assets.data_versions import DataVersions
from iscp_dagster.location.assets.io_manager import SHARD, TENANT_COLUMN
from iscp_dagster.location.assets.iterations import (
    InStep,
    Iterations,
    Outcome,
    report,
    tenants_of,
)
from iscp_dagster.location.assets.reporting import (
    Reported,
    Success,
    iterated,
    materializations,
    news_of,
    store_events,
)
from iscp_dagster.location.names import index_key, io_manager_key, partitions_of, source_key
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import Index, SourceTable, shown_in
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.publish import Delivery


def index_assets(source: SourceTable, pool: str, databases: Sequence[str] = ()) -> AssetsDefinition:
    """All indexes of `source`; any subset of them can run, in `pool`, and shares one scan.

    `databases` are those that the deployment names for its shards.
    """
    by_name = {index.name: index for index in source.indexes}

    @multi_asset(
        name=f"{source.database}_{source.table}_indexes",
        outs={name: _out(source, index, databases) for name, index in by_name.items()},
        deps=[source_key(source)],
        partitions_def=partitions_of(source),
        can_subset=True,
        backfill_policy=BackfillPolicy.single_run(),
        required_resource_keys={"iscp"},
        pool=pool,
    )
    def synchronize(context: AssetExecutionContext) -> Iterator[Output[Success]]:
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
        )
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


def _out(source: SourceTable, index: Index, databases: Sequence[str]) -> AssetOut:
    return AssetOut(
        key=index_key(source, index),
        io_manager_key=io_manager_key(index.kind),
        is_required=False,
        kinds={"clickhouse"},
        description=index.description or _describe(source, index),
        owners=list(index.owners or source.owners),
        tags={**source.tags, **index.tags, "iscp/index": index.kind},
        group_name=source.database,
        metadata={
            "dagster/table_name": shown_in(source, index, databases),
            TENANT_COLUMN: source.tenant or "",
            **({SHARD: index.shard} if index.placement else {}),
        },
    )


def _describe(source: SourceTable, index: Index) -> str:
    held = index.placement
    which = f"Shard {held.shard} of {held.shards} of the" if held else "The"
    return f"{which} {index.kind} index of `{source.name}`, kept in step by its jobs."


def _of_one(
    context: AssetExecutionContext, its: Iterations
) -> Generator[Output[Success], None, list[Outcome]]:
    """Bring one tenant in step; yields the outputs of its indexes, and returns what failed."""
    declared = {index.name for index in its.source.indexes}
    failed: list[Outcome] = []
    with _reporting(context, its) as reported:
        for outcome in (each for some in its.outcomes() for each in some):
            reported()
            if not isinstance(outcome, Delivery | InStep):
                failed.append(outcome)
            elif outcome.job_name in declared:
                version = DataVersion(str(outcome.data_version))
                yield Output(outcome, output_name=outcome.job_name, data_version=version)
            elif isinstance(outcome, Delivery):
                store_events(
                    context, materializations(context.instance, its.source, [outcome], its.run_id)
                )
    return failed


@contextmanager
def _reporting(context: AssetExecutionContext, its: Iterations) -> Iterator[Callable[[], None]]:
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


def _report_versions(context: AssetExecutionContext, news: Sequence[Reported]) -> None:
    store_events(context, news)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def _tenants(
    context: AssetExecutionContext, source: SourceTable, deployment: Deployment
) -> list[str]:
    """The tenants that the run names, and those that it takes over from its backfill."""
    named, partitions = tenants_of(context, source), partitions_of(source)
    take_over(context.instance, context.run, partitions, deployment.log)
    return sorted({*named, *taken(context.instance, context.run, partitions)})
