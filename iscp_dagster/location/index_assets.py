"""The indexes of one source table as assets: a run of them is an iteration."""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    BackfillPolicy,
    DataVersion,
    Failure,
    Output,
    multi_asset,
)

from iscp_dagster.core.errors import FenceError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.states import JobState
from iscp_dagster.core.tables import Index, SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.iterate import Delivery, Failed, iterate
from iscp_dagster.engine.jobs import registrations
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.location.data_versions import DataVersions
from iscp_dagster.location.io_manager import TENANT_COLUMN
from iscp_dagster.location.names import (
    DISPATCH_TAG,
    TO_TAG,
    index_key,
    partitions_of,
    source_key,
)


def io_manager_key(kind: str) -> str:
    """The resource that stores indexes of that kind."""
    return f"{kind}_index"


def index_assets(source: SourceTable) -> AssetsDefinition:
    """All indexes of `source`; any subset of them can be run, and shares one scan."""
    by_name = {index.name: index for index in source.indexes}

    @multi_asset(
        name=f"{source.database}_{source.table}_indexes",
        outs={name: _out(source, index) for name, index in by_name.items()},
        deps=[source_key(source)],
        partitions_def=partitions_of(source),
        can_subset=True,
        backfill_policy=BackfillPolicy.multi_run(max_partitions_per_run=1),
        required_resource_keys={"iscp"},
        pool="clickhouse",
    )
    def synchronize(context: AssetExecutionContext) -> Iterator[Output[Delivery]]:
        engine: Engine = context.resources.iscp.engine()
        chosen = [
            by_name[name] for name in sorted(context.op_execution_context.selected_output_names)
        ]
        failures: list[Failed] = []
        for iteration in _iterations(context, engine, source, chosen):
            for outcome in _outcomes(context, engine, source, iteration):
                if isinstance(outcome, Failed):
                    failures.append(outcome)
                else:
                    yield _output(outcome)
        _report(failures)

    return synchronize


def _out(source: SourceTable, index: Index) -> AssetOut:
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
            "dagster/table_name": f"{source.database}.{source.table}_{index.name}",
            TENANT_COLUMN: source.tenant or "",
        },
    )


def _describe(source: SourceTable, index: Index) -> str:
    return f"The {index.kind} index of `{source.name}`, kept in step by its jobs."


def _iterations(
    context: AssetExecutionContext, engine: Engine, source: SourceTable, chosen: Sequence[Index]
) -> Iterator[Iteration]:
    """From each job's watermark to the version asked for, or to now; jobs at one watermark share.

    A run that the runner dispatched takes the jobs that wait for it. One that a person started
    registers, repairs and takes over whatever is not being written at this moment.
    """
    log = engine.delta_log(source)
    table_id = log.table_id()
    dispatch = context.run.tags.get(DISPATCH_TAG)
    asked = context.run.tags.get(TO_TAG)
    to = Moment.parse(asked) if asked else log.latest()
    _report_versions(context, source, log, to)
    names = {index.name for index in chosen}
    for tenant in context.partition_keys:
        if dispatch is None:
            take_over(engine, source, table_id, tenant, chosen)
        jobs = engine.log.jobs(table_id=table_id, account=tenant)
        mine = [job for job in jobs if job.key.job_name in names and _takes(job, dispatch)]
        yield from _grouped(mine, to)


def _report_versions(
    context: AssetExecutionContext, source: SourceTable, log: DeltaLog, to: Moment
) -> None:
    """Report what the runner has not yet, before Dagster notes what the indexes were made of."""
    versions = DataVersions(context.instance, source, log, to.version)
    news = versions.news(context.partition_keys)
    for event in news:
        context.log_event(event)
    if news:
        context.get_step_execution_context().fetch_external_input_asset_version_info()


def take_over(
    engine: Engine, source: SourceTable, table_id: str, tenant: str, chosen: Sequence[Index]
) -> None:
    """Make the tenant's jobs startable by hand: registered, not queued elsewhere, repaired."""
    engine.log.register_many(registrations(source, table_id, [tenant], chosen))
    names = {index.name for index in chosen}
    jobs = engine.log.jobs(table_id=table_id, account=tenant)
    mine = [job for job in jobs if job.key.job_name in names]
    engine.log.cancel([job.key for job in mine if job.state is JobState.PENDING])
    engine.log.repair([job.key for job in mine if job.state is JobState.ERROR])


def _takes(job: Job, dispatch: str | None) -> bool:
    if dispatch is None:
        return True
    return job.state is JobState.PENDING and job.run_id == dispatch


def _grouped(jobs: Sequence[Job], to: Moment) -> Iterator[Iteration]:
    behind = [job for job in jobs if job.watermark.version < to.version]
    for version in sorted({job.watermark.version for job in behind}):
        group = [job for job in behind if job.watermark.version == version]
        yield Iteration(
            table_id=group[0].key.table_id,
            tenants=frozenset(job.key.account for job in group),
            jobs=tuple(job.key for job in group),
            from_=group[0].watermark,
            to=to,
        )


def _outcomes(
    context: AssetExecutionContext, engine: Engine, source: SourceTable, iteration: Iteration
) -> Iterator[Delivery | Failed]:
    dispatch = context.run.tags.get(DISPATCH_TAG)
    run_id = context.run.run_id
    outcomes = iterate(engine, source, iteration, run_id=run_id, queued_as=dispatch)
    try:
        yield from outcomes
    except FenceError as error:
        if dispatch is None:
            raise Failure(str(error), allow_retries=False) from error
        context.log.warning("The iteration was taken by another run: %s", error)


def _output(delivery: Delivery) -> Output[Delivery]:
    return Output(
        delivery,
        output_name=delivery.claim.key.job_name,
        data_version=DataVersion(str(delivery.to.version)),
    )


def _report(failures: Sequence[Failed]) -> None:
    if failures:
        lines = [f"[{failed.code}] {failed.claim.name}: {failed.message}" for failed in failures]
        raise Failure("\n".join(lines), allow_retries=False)
