"""The runner as a Dagster sensor, whose ticks wait for the next commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import dagster as dg

from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.location.assets.iteration_job import Startable
from iscp_dagster.location.internals import MAX_RETRIES_TAG
from iscp_dagster.location.names import (
    PRIORITY_TAG,
    RUNNER,
    SERVICES_TAG,
    TABLE_TAG,
    TENANT_COUNT_TAG,
    TENANT_TAG,
    get_batch_sync_job_name,
    get_job_asset_key,
    get_partitions_name,
    get_sync_job_name,
)
from iscp_dagster.location.sensor.preview import (
    build_partition_requests,
    drop_dispatch_tag,
    is_trial,
    take_trial_look,
)
from iscp_dagster.location.sensor.recovery import LocationRuns, Recovery
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Dispatch, LookResult
from iscp_dagster.planning.reporter import Reporter
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.run_names import DISPATCH_TAG, ensure_instance_name
from iscp_dagster.runs.shutdown import is_ending
from iscp_dagster.sync.deployment import Deployment

ROUND_SECONDS = 5
"""Seconds between the rounds in which Dagster's daemon evaluates sensors."""
SCAN_SECONDS = 10
"""Seconds between looks at a table in an object store, and at what becomes due by time."""
TICK_SECONDS = 19.4
"""The longest that a tick waits; Dagster's daemon starts due sensors every 5 s, and ends a tick
after 60 s."""
COMMITS_SECONDS = 0.1
"""Seconds between checks for the next commit of each table."""
HISTORY_SECONDS = 0.5
"""Seconds between checks for new history of jobs."""
RESTS = 5
"""A tick checks for news only after resting this many times as long as its last look took."""
FORGOT = "The sensor's cursor could not be read; every table was looked at as after a restart."


@dataclass
class Lookout:
    """The runner between ticks, so that a tick costs only what changed; a restart starts over."""

    sources: Sequence[SourceTable]
    poll_seconds: float
    pause: Callable[[float], object] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    """A restarted daemon may evaluate a sensor while the previous daemon still does."""
    _recovery_and_runner: tuple[Recovery, Runner] | None = None
    _turn: int = 0
    """Counts the ticks; a newer tick ends the wait of earlier ones."""

    def take_looks(self, context: dg.SensorEvaluationContext) -> Iterator[LookResult]:
        """Yield the looks of one tick until one finds something.

        The caller uses the last one, as the earlier ones found nothing. Only one look if the
        daemon runs sensors without threads, so that other sensors do not wait.
        """
        self._turn = turn = self._turn + 1
        threads = (context.instance.get_settings("sensors") or {}).get("use_threads")
        end = self.monotonic() + (TICK_SECONDS if threads else 0.0)
        cursor = context.cursor
        while True:
            start = self.monotonic()
            look = self._take_look(context, cursor)
            yield look
            cursor, seconds = look.cursor, self.monotonic() - start
            rest_end = self.monotonic() + RESTS * seconds
            if not (
                look.quiet
                and self._wait_for_reason(turn, rest_end, end)
                and is_sensor_running(context)
            ):
                return

    @contextmanager
    def open_reporter(self, context: dg.SensorEvaluationContext) -> Iterator[Reporter]:
        """Yield a reporter of the looks so far; no look starts meanwhile."""
        with self._lock:
            _, runner = self._get_recovery_and_runner(context)
            yield Reporter(runner)

    def _take_look(self, context: dg.SensorEvaluationContext, cursor: str | None) -> LookResult:
        with self._lock:
            recovery, runner = self._get_recovery_and_runner(context)
            recovery.clean_up_runs(context.instance)
            return runner.look(cursor)

    def _get_recovery_and_runner(
        self, context: dg.SensorEvaluationContext
    ) -> tuple[Recovery, Runner]:
        if self._recovery_and_runner is None:
            deployment: Deployment = context.resources.iscp.create_deployment()
            origin = context.code_location_origin
            ours = LocationRuns.from_sources(
                self.sources, None if origin is None else origin.location_name
            )
            runner = Runner(
                deployment,
                self.sources,
                owner=ensure_instance_name(context.instance),
                poll_seconds=self.poll_seconds,
                monotonic=self.monotonic,
                ending=is_ending,
            )
            self._recovery_and_runner = Recovery(deployment, ours, self.monotonic), runner
        return self._recovery_and_runner

    def _wait_for_reason(self, turn: int, rest_end: float, end: float) -> bool:
        """Wait for a reason to look again; False if there is none before `end`."""
        next_scan = self.monotonic() + self.poll_seconds
        next_check = 0.0
        while (now := self.monotonic()) < end and self._turn == turn and not is_ending():
            if now >= next_scan:
                return True
            if now >= rest_end:
                if self._has_news(events=now >= next_check):
                    return True
                next_check = now + HISTORY_SECONDS if now >= next_check else next_check
            self.pause(COMMITS_SECONDS)
        return False

    def _has_news(self, *, events: bool) -> bool:
        with self._lock:
            if self._recovery_and_runner is None:
                return False
            _, runner = self._recovery_and_runner
            return (
                runner.has_unregistered_tenants()
                or runner.has_new_commit()
                or (events and runner.has_new_history())
            )


def build_runner_sensor(lookout: Lookout, jobs: Sequence[Startable]) -> dg.SensorDefinition:
    """The sensor that finds new commits and requests runs for what is due."""

    @dg.sensor(
        name=RUNNER,
        jobs=jobs,
        # Every round of the daemon may start a tick: a tick that finds nothing waits by itself.
        minimum_interval_seconds=max(1, min(int(lookout.poll_seconds), ROUND_SECONDS - 1)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"iscp"},
        description="Finds new commits in the source tables and brings their indexes in step.",
    )
    def iscp_runner(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if is_trial(context):
            return _evaluate_trial(context, lookout.sources)
        for latest in lookout.take_looks(context):
            look = latest
            add_partitions(context.instance, lookout.sources, look.present)
        for line in _format_new_problems(look):
            context.log.warning(line)
        add_partitions(context.instance, lookout.sources, _list_dispatched_tenants(look))
        return dg.SensorResult(
            run_requests=[build_run_request(dispatch) for dispatch in look.dispatches],
            skip_reason=None if look.dispatches else _format_skip_reason(look),
            cursor=look.cursor,
        )

    return iscp_runner


def _evaluate_trial(
    context: dg.SensorEvaluationContext, sources: Sequence[SourceTable]
) -> dg.SensorResult:
    """What a tick would request now; the cursor stays: a trial changes nothing."""
    look = take_trial_look(context.resources.iscp.create_deployment(), sources, context.cursor)
    return dg.SensorResult(
        run_requests=[
            drop_dispatch_tag(build_run_request(dispatch)) for dispatch in look.dispatches
        ],
        skip_reason=None if look.dispatches else _format_skip_reason(look),
        cursor=context.cursor,
        dynamic_partitions_requests=list(
            build_partition_requests(context.instance, look.dispatches)
        ),
    )


def build_run_request(dispatch: Dispatch) -> dg.RunRequest:
    """One run for the iteration; for a single tenant it selects what is declared as assets."""
    iteration, source = dispatch.iteration, dispatch.source
    tenant, *others = sorted(iteration.tenants)
    job_names = {key.job_name for key in iteration.jobs}
    tenant_tags = (
        {TENANT_COUNT_TAG: str(len(iteration.tenants))} if others else {TENANT_TAG: tenant}
    )
    if iteration.waits_long:
        tenant_tags[SERVICES_TAG] = dispatch.name if others else tenant
    tags = {
        DISPATCH_TAG: dispatch.name,
        TABLE_TAG: source.name,
        **tenant_tags,
        PRIORITY_TAG: str(iteration.priority),
        # The runner retries temporary failures; other failures wait for a person.
        MAX_RETRIES_TAG: "0",
    }
    selected = [
        get_job_asset_key(source, consumer.name)
        for consumer in source.consumers
        if consumer.name in job_names
    ]
    # A run of assets would plan to materialize whole buckets.
    if others or not selected or source.buckets:
        return dg.RunRequest(
            run_key=dispatch.name, job_name=get_batch_sync_job_name(source), tags=tags
        )
    return dg.RunRequest(
        run_key=dispatch.name,
        job_name=get_sync_job_name(source),
        partition_key=tenant,
        asset_selection=selected,
        # None would also run the assets' checks, which compare every row.
        asset_check_keys=[],
        tags=tags,
    )


def add_partitions(
    instance: dg.DagsterInstance,
    sources: Sequence[SourceTable],
    present: Mapping[str, Sequence[str]],
) -> None:
    """Make every tenant a partition, unless tenants share buckets. Idempotent."""
    for source in sources:
        tenants = present.get(source.name)
        if source.tenant is not None and not source.buckets and tenants:
            # In portions: Dagster puts all of them into one statement.
            for portion in split_for_statements(tenants):
                instance.add_dynamic_partitions(get_partitions_name(source), portion)


def _list_dispatched_tenants(look: LookResult) -> Mapping[str, Sequence[str]]:
    """Dispatched tenants by table, including tenants with jobs but no rows yet."""
    tenants_by_table: dict[str, list[str]] = {}
    for dispatch in look.dispatches:
        tenants_by_table.setdefault(dispatch.source.name, []).extend(dispatch.iteration.tenants)
    return tenants_by_table


def _format_new_problems(look: LookResult) -> list[str]:
    """The problems that no earlier tick has reported."""
    cursor_problems = [FORGOT] if look.forgot else []
    return [
        *cursor_problems,
        *(str(problem) for problem in look.problems if problem.table in look.new_problem_tables),
    ]


def _format_skip_reason(look: LookResult) -> str:
    reported = sorted({problem.table for problem in look.problems} - look.new_problem_tables)
    reminder = f"Still wrong, as reported before (see the table's check): {', '.join(reported)}."
    lines = [*_format_new_problems(look), *([reminder] if reported else [])]
    if look.elsewhere:
        names = ", ".join(sorted(look.elsewhere))
        lines += [f"Another Dagster on the same ISCP log looks after {names}; this one stands by."]
    return "\n".join(lines) or "Every index is in step, or its iteration is under way."


def is_sensor_running(context: dg.SensorEvaluationContext) -> bool:
    """Whether nobody switched the sensor off since its tick began."""
    origin = context.code_location_origin
    return all(
        state.is_running
        for state in context.instance.all_instigator_state()
        if state.instigator_name == context.sensor_name
        and (origin is None or state.selector.location_name == origin.location_name)
    )
