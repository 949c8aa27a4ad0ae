"""The indexes of one source table as assets: a run of them is an iteration."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    BackfillPolicy,
    DataVersion,
    Output,
    multi_asset,
)

from iscp_dagster.joblog.iterations import Failed
from iscp_dagster.location.assets.backfills import take_over, taken
from iscp_dagster.location.assets.data_versions import AssetEvent, DataVersions
from iscp_dagster.location.assets.io_manager import SHARD, TENANT_COLUMN
from iscp_dagster.location.assets.iteration_job import materialized, of_undeclared, stored_of
from iscp_dagster.location.assets.iterations import InStep, Iterations, report, tenants_of
from iscp_dagster.location.assets.source_check import evaluation
from iscp_dagster.location.names import index_key, io_manager_key, partitions_of, source_key
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import Index, SourceTable, shown_in
from iscp_dagster.planning.table_problems import problems_of
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
    def synchronize(context: AssetExecutionContext) -> Iterator[Output[Delivery | InStep]]:
        deployment: Deployment = context.resources.iscp.deployment()
        iterations = Iterations.of(
            context.run,
            context.instance,
            deployment=deployment,
            source=source,
            tenants=_tenants(context, source),
            chosen=[
                by_name[name] for name in sorted(context.op_execution_context.selected_output_names)
            ],
            warn=context.log.warning,
        )
        with working(deployment, context.run), _reporting(context, iterations) as reported:
            if len(iterations.tenants) > 1:
                report(_many(context, iterations, reported))
                return
            failures: list[Failed] = []
            for outcome in iterations.outcomes():
                reported()
                if isinstance(outcome, Failed):
                    failures.append(outcome)
                elif outcome.job_name in by_name:
                    version = DataVersion(str(outcome.data_version))
                    yield Output(outcome, output_name=outcome.job_name, data_version=version)
                elif isinstance(outcome, Delivery):
                    context.log_event(materialized(source, outcome))
        report(failures)

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


@contextmanager
def _reporting(context: AssetExecutionContext, its: Iterations) -> Iterator[Callable[[], None]]:
    """Report, in parallel with the iteration, the versions that the runner has not reported.

    Yields a function that returns once Dagster has them: before that, Dagster would record wrongly
    what an index was built from.
    """
    news = _news(context, its)
    with ThreadPoolExecutor(1, "reporting versions") as beside:
        reported = beside.submit(_report_versions, context, news)
        yield reported.result
        reported.result()


def _news(
    context: AssetExecutionContext, its: Iterations
) -> list[AssetEvent | AssetCheckEvaluation]:
    source = its.source
    versions = DataVersions(context.instance, source, its.delta_log, its.to.version)
    news = versions.news(its.tenants)
    if news and source.load:
        return [*news, evaluation(source, problems_of(its.deployment, source))]
    return [*news]


def _report_versions(
    context: AssetExecutionContext, news: Sequence[AssetEvent | AssetCheckEvaluation]
) -> None:
    for event in news:
        context.log_event(event)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def _many(
    context: AssetExecutionContext, its: Iterations, reported: Callable[[], None]
) -> list[Failed]:
    """Bring many tenants in step, then report each to Dagster. Returns what failed.

    Logs events, since an output of the step would give every tenant what belongs to all of them.
    """
    outcomes = list(its.outcomes())
    reported()
    done = [each for each in outcomes if not isinstance(each, Failed)]
    for _, stored in stored_of(context.instance, its.source, done, its.run_id):
        for event in stored.events():
            context.log_event(event)
    for event in of_undeclared(its.source, done):
        context.log_event(event)
    return [each for each in outcomes if isinstance(each, Failed)]


def _tenants(context: AssetExecutionContext, source: SourceTable) -> list[str]:
    """The tenants that the run names, and those that it takes over from its backfill."""
    named, partitions = tenants_of(context, source), partitions_of(source)
    take_over(context.instance, context.run, partitions)
    return sorted({*named, *taken(context.instance, context.run, partitions)})
