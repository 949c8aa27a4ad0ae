"""The hourly jobs and their schedules; a person can launch them in the UI as well."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg
from pydantic import Field

from iscp_dagster.location.assets.data_versions import event_type
from iscp_dagster.location.assets.reporting import report_indexes
from iscp_dagster.location.names import source_key, sync_job_name, tenants_job_name
from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.variables import KEEP_RUNS_DAYS
from iscp_dagster.planning.problems import as_ours
from iscp_dagster.runs.pruning import prune_runs
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.writing.serving import Served, serve_all
from iscp_dagster.upkeep import maintenance
from iscp_dagster.upkeep.outbox import EVENTS, prune_events

FLUSH, COLLECT = "iscp_flush_watermarks", "iscp_collect_garbage"
PRUNE = "iscp_prune_runs"
REPORT = "iscp_report_indexes"
RUN_BY = (sync_job_name, tenants_job_name)
MOST_RUNS = 2_000
"""The most runs pruned at a time; each takes Dagster some 20 ms."""


class CollectConfig(dg.Config):
    """What the collection deletes."""

    dry_run: bool = Field(default=False, description="List what would be deleted; delete nothing.")
    keep_hours: float = Field(
        default=maintenance.KEPT / timedelta(hours=1),
        description="Hours to keep unregistered jobs and their data.",
    )
    history_days: float = Field(
        default=maintenance.HISTORY / timedelta(days=1),
        description="Days to keep the history of jobs.",
    )
    events_days: float = Field(
        default=EVENTS / timedelta(days=1),
        description="Days to keep events that were delivered or became dead letters.",
    )


class PruneConfig(dg.Config):
    """Which Dagster runs are deleted."""

    dry_run: bool = Field(
        default=False, description="Count the runs that would be deleted; delete none."
    )
    keep_days: float | None = Field(
        default=None,
        description=f"Days to keep successful runs; default: {KEEP_RUNS_DAYS}.",
    )


def maintenance_jobs(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], runs_kept: timedelta
) -> list[dg.JobDefinition]:
    """The flush of watermarks, the collection of garbage, the pruning of runs, and the report."""

    @dg.op(name=f"{FLUSH}_op", required_resource_keys={"iscp"})
    def flush(context: dg.OpExecutionContext) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        with working(deployment, context.run):
            flushed = maintenance.flush_watermarks(deployment, sources)
        context.log.info("Moved %s.", flushed.moved)
        context.add_output_metadata({"moved": sum(flushed.moved.values())})
        if flushed.problems:
            raise dg.Failure("\n".join(flushed.problems), allow_retries=False)

    @dg.op(name=f"{COLLECT}_op", required_resource_keys={"iscp"})
    def collect_garbage(context: dg.OpExecutionContext, config: CollectConfig) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        forgotten, pruned, events, served = 0, 0, 0, Served()
        problems: list[str] = []
        with working(deployment, context.run):
            found = maintenance.garbage(deployment, sources, timedelta(hours=config.keep_hours))
            if not config.dry_run:
                with _noted(problems):
                    forgotten = maintenance.collect(deployment, sources, found)
                with _noted(problems):
                    pruned = maintenance.prune_history(
                        deployment, timedelta(days=config.history_days)
                    )
                with _noted(problems):
                    events = prune_events(deployment, timedelta(days=config.events_days))
                served = serve_all(deployment, sources)
                problems += [*served.problems, *maintenance.clear_staging(deployment, sources)]
        lines = [f"- {each.job.name} of {each.job.key.tenant}: {each.drops}" for each in found]
        context.add_output_metadata(
            {
                "served": [str(each) for each in served.indexes],
                "found": dg.MetadataValue.md("\n".join(lines) or "nothing"),
                "jobs": forgotten,
                "history": pruned,
                "events": events,
            }
        )
        if problems:
            raise dg.Failure("\n".join(problems), allow_retries=False)

    @dg.op(name=f"{PRUNE}_op", required_resource_keys={"iscp"})
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        kept = runs_kept if config.keep_days is None else timedelta(days=config.keep_days)
        with working(deployment, context.run):
            pruned = prune_runs(
                context.instance,
                before=datetime.now(timezone.utc) - kept,
                jobs={name(source) for source in sources for name in RUN_BY},
                assets=events_to_keep(context.instance, sources),
                most=MOST_RUNS,
                dry_run=config.dry_run,
            )
        context.add_output_metadata({"runs": pruned.runs, "kept": pruned.kept})

    @dg.job(
        name=FLUSH,
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description="Saves the watermarks of idle jobs, which move in memory, to the ISCP log.",
    )
    def flush_job() -> None:
        flush()

    @dg.job(
        name=COLLECT,
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description="Deletes expired unregistered jobs and their index data.",
    )
    def collect_job() -> None:
        collect_garbage()

    @dg.job(
        name=PRUNE,
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description="Deletes old successful runs that the runner started. Keeps a run that made "
        "some partition's latest materialization or data version.",
    )
    def prune_job() -> None:
        prune()

    return [flush_job, collect_job, prune_job, _report_job(sources, resources)]


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Add an error to the problems: one step of the upkeep stops no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the run fails at its end with all problems
        problems.append(str(as_ours(error)))


def _report_job(sources: Sequence[SourceTable], resources: Mapping[str, Any]) -> dg.JobDefinition:
    @dg.op(name=f"{REPORT}_op", required_resource_keys={"iscp"})
    def report(context: dg.OpExecutionContext) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        with working(deployment, context.run):
            reported, problems = report_indexes(context, deployment, sources)
        context.add_output_metadata({"reported": sum(reported.values())})
        if problems:
            raise dg.Failure("\n".join(problems), allow_retries=False)

    @dg.job(
        name=REPORT,
        resource_defs=resources,
        executor_def=dg.in_process_executor,
        description="Reports to Dagster the materializations that runs ended without reporting, "
        "though their rows are served.",
    )
    def report_job() -> None:
        report()

    return report_job


def events_to_keep(
    instance: dg.DagsterInstance, sources: Sequence[SourceTable]
) -> dict[dg.AssetKey, dg.DagsterEventType]:
    """The type of event by which Dagster compares each table and index, undeclared ones too."""
    indexes = {
        key: dg.DagsterEventType.ASSET_MATERIALIZATION
        for source in sources
        for key in instance.get_asset_keys(prefix=[source.database])
        if key.path[-1].startswith(f"{source.table}_")
    }
    return indexes | {source_key(source): event_type(source) for source in sources}


def hourly(jobs: Sequence[dg.JobDefinition]) -> list[dg.ScheduleDefinition]:
    """Run each Dagster job every hour, ten minutes apart."""
    return [
        dg.ScheduleDefinition(
            name=f"{each.name}_hourly",
            job=each,
            description=each.description,
            cron_schedule=f"{7 + 10 * number} * * * *",
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
        for number, each in enumerate(jobs)
    ]
