"""The hourly jobs and their schedules; a person can also launch them in the UI."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg
from pydantic import Field

from iscp_dagster.location.assets.reports.data_versions import get_version_event_type
from iscp_dagster.location.assets.reports.reporting import report_indexes
from iscp_dagster.location.names import (
    get_batch_sync_job_name,
    get_source_asset_key,
    get_sync_job_name,
)
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.variables import KEEP_RUNS_DAYS
from iscp_dagster.planning.problems import to_iscp_error
from iscp_dagster.runs.pruning import prune_runs
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.writing.serving import ServeResult, serve_all
from iscp_dagster.upkeep import maintenance
from iscp_dagster.upkeep.outbox import EVENT_RETENTION, prune_events

FLUSH, COLLECT = "iscp_flush_watermarks", "iscp_collect_garbage"
PRUNE = "iscp_prune_runs"
REPORT = "iscp_report_indexes"
JOB_NAME_GETTERS = (get_sync_job_name, get_batch_sync_job_name)
MOST_RUNS = 2_000
"""The most runs pruned at a time; each takes Dagster about 20 ms."""


class CollectConfig(dg.Config):
    """What the collection deletes."""

    dry_run: bool = Field(default=False, description="List what would be deleted; delete nothing.")
    keep_hours: float = Field(
        default=maintenance.JOB_RETENTION / timedelta(hours=1),
        description="Hours to keep unregistered jobs and their data.",
    )
    history_days: float = Field(
        default=maintenance.HISTORY_RETENTION / timedelta(days=1),
        description="Days to keep the history of jobs.",
    )
    events_days: float = Field(
        default=EVENT_RETENTION / timedelta(days=1),
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


def build_maintenance_jobs(
    sources: Sequence[SourceTable], resources: Mapping[str, Any], runs_kept: timedelta
) -> list[dg.JobDefinition]:
    """The jobs that flush watermarks, collect garbage, prune runs, and report indexes."""

    @dg.op(name=f"{FLUSH}_op", required_resource_keys={"iscp"})
    def flush(context: dg.OpExecutionContext) -> None:
        deployment: Deployment = context.resources.iscp.create_deployment()
        with hold_run_lease(deployment, context.run):
            flushed = maintenance.flush_watermarks(deployment, sources)
        context.log.info("Moved %s.", flushed.moved_jobs)
        context.add_output_metadata({"moved": sum(flushed.moved_jobs.values())})
        if flushed.problems:
            raise dg.Failure("\n".join(flushed.problems), allow_retries=False)

    @dg.op(name=f"{COLLECT}_op", required_resource_keys={"iscp"})
    def collect_garbage(context: dg.OpExecutionContext, config: CollectConfig) -> None:
        deployment: Deployment = context.resources.iscp.create_deployment()
        forgotten, pruned, events, served = 0, 0, 0, ServeResult()
        problems: list[str] = []
        with hold_run_lease(deployment, context.run):
            garbage = maintenance.find_garbage(
                deployment, sources, timedelta(hours=config.keep_hours)
            )
            if not config.dry_run:
                with _record_problem(problems):
                    forgotten = maintenance.delete_garbage(deployment, sources, garbage)
                with _record_problem(problems):
                    pruned = maintenance.prune_history(
                        deployment, timedelta(days=config.history_days)
                    )
                with _record_problem(problems):
                    events = prune_events(deployment, timedelta(days=config.events_days))
                served = serve_all(deployment, sources)
                problems += [*served.problems, *maintenance.clear_staging(deployment, sources)]
        lines = [
            f"- {entry.job.name} of {entry.job.key.tenant}: {entry.scope}" for entry in garbage
        ]
        context.add_output_metadata(
            {
                "served": [str(index) for index in served.indexes],
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
        deployment: Deployment = context.resources.iscp.create_deployment()
        retention = runs_kept if config.keep_days is None else timedelta(days=config.keep_days)
        with hold_run_lease(deployment, context.run):
            pruned = prune_runs(
                context.instance,
                before=datetime.now(timezone.utc) - retention,
                jobs={name(source) for source in sources for name in JOB_NAME_GETTERS},
                assets=find_kept_event_types(context.instance, sources),
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

    return [flush_job, collect_job, prune_job, _build_report_job(sources, resources)]


@contextmanager
def _record_problem(problems: list[str]) -> Iterator[None]:
    """Add an error to the problems: a failed step must not stop the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the run fails at its end with all problems
        problems.append(str(to_iscp_error(error)))


def _build_report_job(
    sources: Sequence[SourceTable], resources: Mapping[str, Any]
) -> dg.JobDefinition:
    @dg.op(name=f"{REPORT}_op", required_resource_keys={"iscp"})
    def report(context: dg.OpExecutionContext) -> None:
        deployment: Deployment = context.resources.iscp.create_deployment()
        with hold_run_lease(deployment, context.run):
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


def find_kept_event_types(
    instance: dg.DagsterInstance, sources: Sequence[SourceTable]
) -> dict[dg.AssetKey, dg.DagsterEventType]:
    """The event type by which Dagster compares each table and index, including undeclared ones."""
    indexes = {
        key: dg.DagsterEventType.ASSET_MATERIALIZATION
        for source in sources
        for key in instance.get_asset_keys(prefix=[source.database])
        if key.path[-1].startswith(f"{source.table}_")
    }
    return indexes | {
        get_source_asset_key(source): get_version_event_type(source) for source in sources
    }


def build_hourly_schedules(jobs: Sequence[dg.JobDefinition]) -> list[dg.ScheduleDefinition]:
    """Run each Dagster job every hour, ten minutes apart."""
    return [
        dg.ScheduleDefinition(
            name=f"{job.name}_hourly",
            job=job,
            description=job.description,
            cron_schedule=f"{7 + 10 * number} * * * *",
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
        for number, job in enumerate(jobs)
    ]
