"""The runner as a Dagster sensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    DagsterInstance,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.storage.tags import MAX_RETRIES_TAG

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location.assets.data_versions import AssetEvent, version_event
from iscp_dagster.location.assets.iteration_job import Startable
from iscp_dagster.location.assets.metadata import log_facts
from iscp_dagster.location.assets.source_check import evaluation
from iscp_dagster.location.names import (
    PRIORITY_TAG,
    TABLE_TAG,
    TENANT_TAG,
    TENANTS_TAG,
    index_key,
    partitions_name,
    sync_job_name,
    tenants_job_name,
)
from iscp_dagster.location.sensor.recovery import Ours, Recovery
from iscp_dagster.location.sensor.trial import by_hand, is_trial, missing_partitions, trial_look
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Dispatch, Look, News
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.named import DISPATCH_TAG, identity
from iscp_dagster.sync.deployment import Deployment

SCAN_SECONDS = 10
FORGOT = "The sensor's cursor could not be read; every table was looked at as after a restart."


def runner_sensor(
    sources: Sequence[SourceTable], jobs: Sequence[Startable], scan_seconds: int
) -> SensorDefinition:
    """The sensor that finds new commits, reports them, and requests a run an iteration."""
    # Kept between ticks, so that a tick costs what changed; a restart makes them anew.
    kept: list[tuple[Recovery, Runner]] = []
    # A daemon that was restarted may evaluate it while the one before still does.
    one_at_a_time = Lock()

    @sensor(
        name="iscp_runner",
        jobs=jobs,
        minimum_interval_seconds=scan_seconds,
        default_status=DefaultSensorStatus.RUNNING,
        required_resource_keys={"iscp"},
        description="Finds new commits in the source tables and brings their indexes in step.",
    )
    def iscp_runner(context: SensorEvaluationContext) -> SensorResult:
        if is_trial(context):
            return _tried(context, sources)
        with one_at_a_time:
            if not kept:
                kept.append(_begun(context, sources))
            ((recovery, runner),) = kept
            recovery.look(context.instance)
            look = runner.look(context.cursor)
            told = [*events(look.news, runner.delta_log_of), *verdicts(look, sources)]
        for line in _told(look):
            context.log.warning(line)
        add_partitions(context.instance, sources, look.present)
        add_partitions(context.instance, sources, _dispatched(look))
        return SensorResult(
            run_requests=[run_request(dispatch) for dispatch in look.dispatches],
            skip_reason=None if look.dispatches else _reason(look),
            cursor=look.cursor,
            asset_events=told,
        )

    return iscp_runner


def _tried(context: SensorEvaluationContext, sources: Sequence[SourceTable]) -> SensorResult:
    """What a tick would request now; the cursor stays, as nothing came of it."""
    look = trial_look(context.resources.iscp.deployment(), sources, context.cursor)
    return SensorResult(
        run_requests=[by_hand(run_request(dispatch)) for dispatch in look.dispatches],
        skip_reason=None if look.dispatches else _reason(look),
        cursor=context.cursor,
        dynamic_partitions_requests=list(missing_partitions(context.instance, look.dispatches)),
    )


def _begun(
    context: SensorEvaluationContext, sources: Sequence[SourceTable]
) -> tuple[Recovery, Runner]:
    deployment: Deployment = context.resources.iscp.deployment()
    origin = context.code_location_origin
    ours = Ours.of(sources, None if origin is None else origin.location_name)
    return Recovery(deployment, ours), Runner(deployment, sources, owner=identity(context.instance))


def run_request(dispatch: Dispatch) -> RunRequest:
    """One run of the iteration; of one tenant its declared indexes are assets of it."""
    iteration, source = dispatch.iteration, dispatch.source
    tenant, *others = sorted(iteration.tenants)
    names = {key.job_name for key in iteration.jobs}
    of = {TENANTS_TAG: str(len(iteration.tenants))} if others else {TENANT_TAG: tenant}
    tags = {
        DISPATCH_TAG: dispatch.name,
        TABLE_TAG: source.name,
        **of,
        PRIORITY_TAG: str(iteration.priority),
        # The runner plans again what failed for a while; the rest waits for a person.
        MAX_RETRIES_TAG: "0",
    }
    selected = [index_key(source, index) for index in source.indexes if index.name in names]
    if others or not selected:
        return RunRequest(run_key=dispatch.name, job_name=tenants_job_name(source), tags=tags)
    return RunRequest(
        run_key=dispatch.name,
        job_name=sync_job_name(source),
        partition_key=tenant,
        asset_selection=selected,
        # None would run the checks of these assets as well, which compare every row.
        asset_check_keys=[],
        tags=tags,
    )


def add_partitions(
    instance: DagsterInstance, sources: Sequence[SourceTable], present: Mapping[str, Sequence[str]]
) -> None:
    """Make every tenant a partition; those that are there stay."""
    for source in sources:
        tenants = present.get(source.name)
        if source.tenant is not None and tenants:
            # Dagster asks for all of them in one statement.
            for some in portions(tenants):
                instance.add_dynamic_partitions(partitions_name(source), some)


def _dispatched(look: Look) -> Mapping[str, Sequence[str]]:
    """Tenants by table, also those whose jobs were registered before they have rows."""
    found: dict[str, list[str]] = {}
    for dispatch in look.dispatches:
        found.setdefault(dispatch.source.name, []).extend(dispatch.iteration.tenants)
    return found


def events(
    news: Sequence[News], delta_log_of: Callable[[SourceTable], DeltaLog]
) -> Iterator[AssetEvent]:
    """A new data version for every changed tenant, so that its indexes show as behind."""
    for each in news:
        facts = _facts(delta_log_of(each.source)) if each.versions else {}
        for tenant, version in each.versions.items():
            yield version_event(each.source, tenant, version, facts)


def verdicts(look: Look, sources: Sequence[SourceTable]) -> Iterator[AssetCheckEvaluation]:
    """What is wrong with a table, or no more, as its check shows it: told once.

    Of a table that is told of by materializations told again with each, or Dagster takes the check
    for one that was never made of the latest.
    """
    again = {each.source.name for each in look.news if each.versions and each.source.load}
    for source in sources:
        if source.name in look.risen | look.settled | again:
            yield evaluation(source, look.of(source.name))


def _facts(delta_log: DeltaLog) -> Mapping[str, Any]:
    try:
        return log_facts(delta_log)
    except Exception:  # noqa: BLE001 - the news stand; the next look tells what is wrong
        return {}


def _told(look: Look) -> list[str]:
    """What was not told at an earlier tick."""
    forgot = [FORGOT] if look.forgot else []
    return [*forgot, *(str(each) for each in look.problems if each.table in look.risen)]


def _reason(look: Look) -> str:
    standing = sorted({each.table for each in look.problems} - look.risen)
    still = f"Still wrong, as was told and as its check shows: {', '.join(standing)}."
    lines = [*_told(look), *([still] if standing else [])]
    if look.elsewhere:
        names = ", ".join(sorted(look.elsewhere))
        lines += [f"Another Dagster on the same ISCP log looks after {names}; this one stands by."]
    return "\n".join(lines) or "Every index is in step, or its iteration is under way."
