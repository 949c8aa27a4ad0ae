"""The hourly jobs and their schedules; a person can launch them in the UI as well."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from dagster import (
    Config,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    ScheduleDefinition,
    in_process_executor,
    job,
    op,
)
from dagster._core.execution.build_resources import wrap_resources_for_execution
from pydantic import Field

from iscp_dagster.location.working import working
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.serving import Served, serve_all
from iscp_dagster.upkeep.maintenance import (
    HISTORY,
    KEPT,
    clear_staging,
    collect,
    flush_watermarks,
    garbage,
    prune_history,
)

FLUSH, COLLECT = "iscp_flush_watermarks", "iscp_collect_garbage"


class CollectConfig(Config):
    """What is cleared away."""

    dry_run: bool = Field(default=False, description="Say what would go, and let it stay.")
    keep_hours: float = Field(
        default=KEPT / timedelta(hours=1), description="How long dropped jobs and their data stay."
    )
    history_days: float = Field(
        default=HISTORY / timedelta(days=1), description="How long the history of jobs stays."
    )


def maintenance_jobs(
    sources: Sequence[SourceTable], resources: Mapping[str, Any]
) -> list[JobDefinition]:
    """The flush of watermarks and the collection of garbage."""
    bound = wrap_resources_for_execution(resources)

    @op(name=f"{FLUSH}_op", required_resource_keys={"iscp"})
    def flush(context: OpExecutionContext) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        with working(deployment, context.run):
            flushed = flush_watermarks(deployment, sources)
        context.log.info("Moved %s.", flushed.moved)
        context.add_output_metadata({"moved": sum(flushed.moved.values())})
        if flushed.problems:
            raise Failure("\n".join(flushed.problems), allow_retries=False)

    @op(name=f"{COLLECT}_op", required_resource_keys={"iscp"})
    def collect_garbage(context: OpExecutionContext, config: CollectConfig) -> None:
        deployment: Deployment = context.resources.iscp.deployment()
        forgotten, pruned, served = 0, 0, Served()
        with working(deployment, context.run):
            found = garbage(deployment, sources, timedelta(hours=config.keep_hours))
            if not config.dry_run:
                forgotten = collect(deployment, sources, found)
                pruned = prune_history(deployment, timedelta(days=config.history_days))
                served = serve_all(deployment, sources)
                served.problems += clear_staging(deployment, sources)
        lines = [f"- {each.job.name} of {each.job.key.account}: {each.drops}" for each in found]
        context.add_output_metadata(
            {
                "served": [str(each) for each in served.indexes],
                "found": MetadataValue.md("\n".join(lines) or "nothing"),
                "jobs": forgotten,
                "history": pruned,
            }
        )
        if served.problems:
            raise Failure("\n".join(served.problems), allow_retries=False)

    @job(
        name=FLUSH,
        resource_defs=bound,
        executor_def=in_process_executor,
        description="Writes down how far idle jobs stand in memory.",
    )
    def flush_job() -> None:
        flush()

    @job(
        name=COLLECT,
        resource_defs=bound,
        executor_def=in_process_executor,
        description="Clears away jobs that were unregistered a day ago, with their index data.",
    )
    def collect_job() -> None:
        collect_garbage()

    return [flush_job, collect_job]


def hourly(jobs: Sequence[JobDefinition]) -> list[ScheduleDefinition]:
    """Each job every hour, a few minutes apart."""
    return [
        ScheduleDefinition(
            name=f"{each.name}_hourly",
            job=each,
            cron_schedule=f"{7 + 10 * number} * * * *",
            default_status=DefaultScheduleStatus.RUNNING,
        )
        for number, each in enumerate(jobs)
    ]
